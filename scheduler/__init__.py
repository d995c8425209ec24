"""The central manager."""
