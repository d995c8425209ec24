"""`farside demo`: Infiniswap's job, shown end to end on this machine."""
