"""What a job log contains: figures of jobs, users and virtual clusters."""
