"""Random workloads: arrivals, lengths and sizes of generated jobs."""
