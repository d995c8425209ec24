"""The InfiniBand subnets of this node, by which the scheduler keeps a job within one fabric."""

from pathlib import Path

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
