"""NBD clients: negotiation and connections."""
