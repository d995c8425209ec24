"""A process that does nothing but run the engine over what it inherits; killed and started again by its test.

`python -m tests.support.engine_process '<json>'`: file descriptors and params as `EngineProcess` writes them.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from farside.kmod_shim.engine.binding import Device, DonorState, Params, SlabInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What each process in turn is handed: state, disk, sockets by worker, slabs' memory by number, all on donor 0."""

    params: Params
    state_fd: int
    disk_fd: int
    sockets: dict[int, int]
    slabs: dict[int, int]
    # granule -> (slab, extent), mapped by the first process only
    mappings: dict[int, tuple[int, int]]


def start(inherited: Inherited) -> "subprocess.Popen[bytes]":
    """Starts a process that serves what the last one left; returns at once."""
    fds = [inherited.state_fd, inherited.disk_fd, *inherited.sockets.values(), *inherited.slabs.values()]
    text = json.dumps(
        {
            "params": {name: int(getattr(inherited.params, name)) for name in Params.__dataclass_fields__},
            "state_fd": inherited.state_fd,
            "disk_fd": inherited.disk_fd,
            "sockets": list(inherited.sockets.items()),
            "slabs": list(inherited.slabs.items()),
            "mappings": list(inherited.mappings.items()),
        }
    )
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.engine_process", text],
        pass_fds=[fd for fd in fds if fd >= 0],
        stdin=subprocess.PIPE,
    )


def main() -> None:
    """Adopts, serves, and ends when stdin does."""
    told = json.loads(sys.argv[1])
    device = Device(Params(**told["params"]), told["state_fd"], told["disk_fd"])
    device.donor_set(0, DonorState.UP)
    device.link_attach_shm(0)
    for number, memfd in told["slabs"]:
        if device.adopted:
            device.slab_remap(number, os.dup(memfd))
        else:
            device.slab_add(SlabInfo(slab=number, donor=0, lease=number, epoch=1, token=number), os.dup(memfd))
    if not device.adopted:
        for granule, (slab, extent) in told["mappings"]:
            device.cluster_map(granule, slab, extent)
    for worker, sock in told["sockets"]:
        device.conn_attach(worker, os.dup(sock))
    sys.stdin.buffer.read()
    device.destroy()


if __name__ == "__main__":
    main()
