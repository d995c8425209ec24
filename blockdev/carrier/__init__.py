"""How pages travel to a donor: one protocol, a file for each carrier."""
