"""Where a job goes: one policy a file, all with the shape that `policy` states."""
