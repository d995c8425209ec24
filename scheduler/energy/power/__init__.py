"""Switching nodes off and on: what may be switched is decided here, `drive` does it."""
