"""Inference on a node: executors on parts of a device, and the profiler."""
