"""Ports for tests that run side by side: two of them never get the same one."""

import itertools
import os
import random
import socket

# Below the kernel's range for outgoing connections, so that nobody takes a port between the probe and its use, and
# below a sandbox's own (20000 to 32000).
_FIRST, _PER_WORKER, _WORKERS_MAX = 10_000, 400, 25
# "gw3" in the worker of that number, unset without pytest-xdist.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS_MAX
# Begun anywhere: another checkout's tests may run on this machine too.
_offsets = itertools.count(random.SystemRandom().randrange(_PER_WORKER))


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A loopback port that nobody uses now; each call of a run names another one."""
    for offset in itertools.islice(_offsets, _PER_WORKER):
        port = _FIRST + _WORKER * _PER_WORKER + offset % _PER_WORKER
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port in this worker's range")
