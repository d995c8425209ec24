"""Jobs without GPUs that the manager puts on nodes together: which take turns with which, and why."""
