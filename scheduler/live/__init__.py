"""The live manager: jobs that run, nodes that answer, and a log of all that happened to them."""
