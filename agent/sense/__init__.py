"""Sensors of the node: its hardware and how busy it is.

pressure.py  PSI of memory, CPU and I/O: the door to /proc/pressure
gpu.py       GPUs by NVML, or as the settings declare them
nvlink.py    their NVLinks
links.py     ports of RDMA adapters
growth.py    errors within the last hour: pure
headroom.py  memory that jobs may still get: pure
donor.py     what this node's donor has lent, and where others reach it
swap.py      swap that is a Farside device
usage.py     memory of running tasks
node.py      all of it together
"""
