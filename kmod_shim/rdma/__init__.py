"""RDMA devices of this machine."""
