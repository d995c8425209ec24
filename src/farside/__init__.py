"""Farside: idle memory of other machines as swap space, and a manager for jobs on a GPU cluster."""
