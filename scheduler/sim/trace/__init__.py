"""Traces: jobs as submitted, reading and writing of files, descriptions, and the traces that come with Farside."""
