"""Predictions about jobs from the job log: models, their updates, and their uses."""
