"""Replays of energy policies on series of busy nodes and on traces."""
