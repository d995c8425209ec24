"""How large things are; small enough for forty minutes on two emulated processors."""

GUEST_MIB = 768
SWAP_MIB = 96  # of every back end: the most that any workload has out, and some
SLAB_MIB = 8
HEADROOM_MIB = 48
PAGE_CLUSTER = 3  # vm.page-cluster of all but Farside: the kernel's own (mm/swap.c, swap_setup)
# In the experiment of Table 2.1: what the donor and the cache beside it may have, and the borrower's device, which is
# larger than what is left of that, so that the donor lends all it can before the cache grows.
RETREAT_MIB = 288
LENT_MIB = 256
DONORS = 6  # when some fail, as in [infiniswap §2.7.4.1]
CONNECTIONS = 4  # of the cache's client, and threads of the cache

# A hard disk. [infiniswap §2.7 has one; the figures are the benchmark's]
DISK_IOPS = 120
DISK_BYTES_PER_S = 150_000_000
