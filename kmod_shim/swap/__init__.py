"""Swap on a served device: attach, detach, status, and the rules for them."""
