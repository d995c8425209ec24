"""The scheduler process: it reads the log, decides, and writes its decisions."""
