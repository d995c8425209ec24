"""Trace formats: one file each, and shared code for text, tables and rows."""
