"""The simulator: a virtual clock, traces in, results out. It calls the same cycle as the live manager.

`trace/` and `workload/` give jobs, the modules here run them, `result/` counts, explains and writes down.
"""
