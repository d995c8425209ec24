"""Profiles: what models take on parts of a device, measured once and kept in a folder."""
