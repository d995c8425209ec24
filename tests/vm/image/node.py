#!/usr/bin/python3 -IS
"""Makes a guest that woke from the common snapshot one of its own: `farside-node NUMBER UNIX_TIME_S ENTROPY_HEX`.

All guests of a test wake from one snapshot. What must differ between them is set here: clock, random numbers (two
guests with one state of the kernel's generator would draw the same nonces), name, data network's address. Then the disk
with the farside to be tested is mounted. May run again on a guest that was booted, not woken.
"""

import fcntl
import os
import socket
import subprocess
import sys
import time

RNDADDENTROPY = 0x40085203
RNDRESEEDCRNG = 0x5207
MTU_BYTES = 4200  # lets soft RDMA use packets of 4096

number, now_s, entropy = int(sys.argv[1]), float(sys.argv[2]), bytes.fromhex(sys.argv[3])

time.clock_settime(time.CLOCK_REALTIME, now_s)
with open("/dev/urandom", "wb") as pool:
    header = (len(entropy) * 8).to_bytes(4, "little") + len(entropy).to_bytes(4, "little")
    fcntl.ioctl(pool, RNDADDENTROPY, header + entropy)
    fcntl.ioctl(pool, RNDRESEEDCRNG)
socket.sethostname(f"node{number}")
commands = (
    f"link set eth1 address 52:54:00:77:00:{number:02x}",
    f"link set eth1 mtu {MTU_BYTES}",
    "link set eth1 up",
    f"addr replace 10.77.0.{number}/24 dev eth1",
)
subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
if not os.path.ismount("/farside"):
    subprocess.run(["blockdev", "--flushbufs", "/dev/vdb"], check=True)
    subprocess.run(["mount", "-o", "ro", "/dev/vdb", "/farside"], check=True)
