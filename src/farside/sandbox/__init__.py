"""The sandbox: both planes on one machine, in real processes, for demos, tests and benchmarks."""
