"""Clients of a running manager: the API by HTTP, and which sandbox a command is about."""
