"""A donor that is nothing but the engine's exporter, in a process of its own, so that its CPU time can be read.

`python -m tests.support.rdma_donor ADDRESS CONNECTIONS`: prints its TCP port, makes a queue pair beside each connection
that it gets, and is asleep until its standard input ends.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from farside.kmod_shim.engine.binding import Exporter
from farside.kmod_shim.engine.binding import map as map_memory

SESSION, LEASE, TOKEN = 77, 3, 0x0123_4567_89AB
SLAB_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """What a process has used so far: ticks of 10 ms, and how often it has gone to sleep or been put to."""

    user_ticks: int
    system_ticks: int
    switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDonor:
    """A running one. Its slab is lease `LEASE` of session `SESSION`."""

    pid: int
    address: str
    port: int

    def connect(self) -> socket.socket:
        """A connection beside which the donor makes a queue pair."""
        return socket.create_connection((self.address, self.port))

    def cpu_time(self) -> CpuTime:
        """Of all its threads."""
        process = Path(f"/proc/{self.pid}")
        fields = (process / "stat").read_text().rpartition(") ")[2].split()
        switches = [
            int(line.split()[1])
            for status in process.glob("task/*/status")
            for line in status.read_text().splitlines()
            if "ctxt_switches" in line
        ]
        return CpuTime(user_ticks=int(fields[11]), system_ticks=int(fields[12]), switches=sum(switches))


@contextmanager
def running(address: str, *, connections: int) -> Iterator[RdmaDonor]:
    """A donor that takes so many connections at this address."""
    argv = [sys.executable, "-m", "tests.support.rdma_donor", address, str(connections)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield RdmaDonor(pid=process.pid, address=address, port=int(process.stdout.readline()))
        finally:
            process.stdin.close()


def main(address: str, connections: int) -> None:
    """The process itself."""
    exporter = Exporter()
    fd = os.memfd_create("slab")
    os.truncate(fd, SLAB_BYTES)
    exporter.lease(LEASE, SESSION, TOKEN, map_memory(fd, SLAB_BYTES), SLAB_BYTES)
    with socket.create_server((address, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        for _ in range(connections):
            sock, _ = listener.accept()
            exporter.conn_rdma(SESSION, sock.detach())
    sys.stdin.read()
    exporter.destroy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
