"""The parts of a scheduling domain (domain.py): rules, jobs, queue, held GPUs and history."""
