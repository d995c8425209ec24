"""Parts of a device for executors, one driver a file."""
