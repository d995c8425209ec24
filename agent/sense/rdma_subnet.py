"""The InfiniBand subnets of this node, by which the scheduler keeps a job within one fabric."""

from contextlib import suppress
from pathlib import Path

from farside.agent.messages import LIDS_MAX
from farside.kernel_file import kernel_text
from farside.kmod_shim.rdma.devices import RdmaDevice, devices


def read_rdma_subnet(root: Path) -> str:
    """Subnet prefixes of this node's InfiniBand ports, in order, with commas between; empty where it has none.

    A port keeps its prefix while it is down, so that a cable that is pulled does not move the node to another fabric.
    Ports of RoCE have none: a GID of theirs belongs to a network device. ``root`` has sys/.
    """
    try:
        return ",".join(sorted({prefix for device in devices(root) for prefix in _prefixes(device)}))
    except OSError:  # a device left while it was read; the next reading has what is there
        return ""


def _prefixes(device: RdmaDevice) -> set[str]:
    own = (gid.address for port in device.ports for gid in port.gids if not gid.netdev)
    return {address.exploded[: len("fe80:0000:0000:0000")] for address in own}


def read_lids(root: Path) -> tuple[int, ...]:
    """LIDs of this node's InfiniBand ports, in order; of RoCE they are 0, and left out. ``root`` has sys/."""
    found = set()
    for file in root.glob("sys/class/infiniband/*/ports/*/lid"):
        with suppress(ValueError):  # its adapter is just being taken away
            found.add(int(kernel_text(file), 16))
    return tuple(sorted(found - {0}))[:LIDS_MAX]
