"""Clients of a running manager: its HTTP API, and the choice of a sandbox."""
