"""Measurements and simulations: ``python -m benchmarks`` (make bench) and ``python -m benchmarks.reproduce``."""
