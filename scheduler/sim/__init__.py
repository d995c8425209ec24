"""The simulator: a virtual clock, traces in, results out. Its decisions are those of the cycle."""
