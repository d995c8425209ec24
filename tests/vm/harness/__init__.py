"""Virtual machines for tests: an image of ours, guests on a private network, and what their kernels said."""
