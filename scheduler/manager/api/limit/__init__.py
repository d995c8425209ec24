"""Limits on connections, handshakes and bodies."""
