"""Authentication of callers: unix users, munge, tokens and certificates."""
