"""The log in a database."""
