"""Farside's aggregation beside gloo and ps-lite: the same tensors, in real processes, in turns."""
