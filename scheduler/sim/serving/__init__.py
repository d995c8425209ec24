"""Serving on parts of GPUs, simulated."""
