"""The donor: lends this machine's idle memory, and takes it back the moment its own programs want it."""
