"""`farside status`: what is mapped where, as the running processes tell it."""
