"""Characterisation of a job log: figures of jobs, users and virtual clusters."""
