"""Shared aggregation played on lists of jobs and on job logs."""
