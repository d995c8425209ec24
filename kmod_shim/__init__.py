"""What stands where Infiniswap's kernel module stood."""
