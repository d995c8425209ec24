"""Farside: the idle memory of other machines as swap space, and the GPU cluster around it."""
