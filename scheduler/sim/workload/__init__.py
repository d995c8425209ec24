"""Workloads by chance: arrivals, lengths and sizes that make a trace."""
