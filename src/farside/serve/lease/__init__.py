"""GPUs of a manager's nodes as leases: one-GPU jobs, each with a worker, that come and go under a deployment."""
