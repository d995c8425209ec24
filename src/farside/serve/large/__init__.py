"""Requests that are too large to be read between others: a process of its own reads them."""
