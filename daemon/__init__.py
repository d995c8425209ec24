"""Donor: lends this machine's idle memory, and takes it back when local programs need it."""
