"""The formats of traces, a file each, and what they share: a file as text, its table, a row of it."""
