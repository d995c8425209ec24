"""Results of a simulation: recorded during the run, counted, explained, written to files."""
