"""Kernel interface of Farside: the C engine, nbd, swap and RDMA, in place of Infiniswap's kernel module."""
