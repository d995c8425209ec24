"""The manager's HTTP API, version 1."""
