"""What this node has and how busy it is.

pressure.py  PSI of memory, CPU and I/O: the door to /proc/pressure
gpu.py       GPUs by NVML, or as the settings declare them
headroom.py  memory that jobs may still get: pure
usage.py     CPU time and memory of running tasks
node.py      all of it together
"""
