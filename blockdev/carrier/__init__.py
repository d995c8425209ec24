"""Carriers, the ways in which pages travel to a donor: one protocol, one file for each carrier."""
