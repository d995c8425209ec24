"""Callers: users of this machine, of munge, of tokens and of certificates."""
