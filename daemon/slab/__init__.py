"""Slabs of a donor: pool, sessions, eviction and drain."""
