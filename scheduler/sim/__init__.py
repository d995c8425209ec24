"""The simulator: a virtual clock, traces in, results out. Its decisions are those of the cycle.

`trace/` and `workload/` give jobs, the modules here run them, `result/` counts, explains and writes down.
"""
