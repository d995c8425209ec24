"""The manager's HTTP API, version 1, and the agents' sessions."""
