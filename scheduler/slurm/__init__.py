"""The scheduling cycle over a Slurm cluster."""
