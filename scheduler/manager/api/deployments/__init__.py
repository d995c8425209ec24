"""Deployments of inference in the API: fronts say how they are, users see it."""
