"""Nodes that sleep while nobody needs them: forecasts, policies, and what they come to."""
