"""RDMA devices of this machine, their ports and addresses, from sysfs.

Everything is read below a root folder, so that tests give a fake tree.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from farside.kernel_file import kernel_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """One row of a port's table of addresses. Verbs programs name the row by `index`."""

    index: int
    address: IPv6Address
    kind: str  # "RoCE v2", "IB/RoCE v1"
    netdev: str  # the network device that has the address; empty for InfiniBand's own

    @property
    def ipv4(self) -> IPv4Address | None:
        """IPv4 address of this GID, None where it has none."""
        return self.address.ipv4_mapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of a device, numbered from 1."""

    number: int
    state: str  # the kernel's word: "ACTIVE", "DOWN", "INIT", "ARMED"
    gids: tuple[Gid, ...]

    @property
    def is_active(self) -> bool:
        """True when the port can carry packets."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """One device by the name that `ibv_devices` shows."""

    name: str
    ports: tuple[Port, ...]


def devices(root: Path = Path("/")) -> tuple[RdmaDevice, ...]:
    """All RDMA devices by name; none where the kernel has no RDMA."""
    folder = root / "sys/class/infiniband"
    if not folder.is_dir():
        return ()
    return tuple(RdmaDevice(name=path.name, ports=_ports(path)) for path in sorted(folder.iterdir()))


def _ports(device: Path) -> tuple[Port, ...]:
    # By number, not by name: 10 comes after 2.
    numbers = sorted(int(path.name) for path in (device / "ports").iterdir())
    return tuple(_port(device / "ports" / str(number), number) for number in numbers)


def _port(folder: Path, number: int) -> Port:
    # "4: ACTIVE"
    state = re.sub(r"^\d+:\s*", "", kernel_text(folder / "state"))
    rows = sorted(int(path.name) for path in (folder / "gids").iterdir())
    gids = (_gid(folder, row) for row in rows)
    return Port(number=number, state=state, gids=tuple(gid for gid in gids if gid is not None))


# One row of the table, or None where it has no address.
def _gid(port: Path, row: int) -> Gid | None:
    text = kernel_text(port / "gids" / str(row))
    # Rows without an address are all zeros, and their attributes answer EINVAL.
    if not text or not int(text.replace(":", ""), 16):
        return None
    attributes = port / "gid_attrs"
    kind, netdev = kernel_text(attributes / "types" / str(row)), kernel_text(attributes / "ndevs" / str(row))
    return Gid(index=row, address=IPv6Address(text), kind=kind, netdev=netdev)
