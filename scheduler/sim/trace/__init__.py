"""Traces: a job as it was submitted, files in and out, what is in them, and those that come with Farside."""
