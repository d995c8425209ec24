"""Inference with a promise: the files of profiles and deployments."""
