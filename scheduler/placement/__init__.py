"""Placement policies: which GPUs a job gets. One policy in each file; `policy` defines the interface."""
