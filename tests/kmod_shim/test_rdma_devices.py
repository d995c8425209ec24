"""RDMA devices, their ports and GIDs, read from fake trees of sysfs."""

from ipaddress import IPv4Address
from pathlib import Path

from farside.kmod_shim.rdma.devices import devices

LINK_LOCAL = "fe80:0000:0000:0000:5054:00ff:fe77:0001"
V4_MAPPED = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def add_port(
    root: Path, device: str, *, state: str = "4: ACTIVE", netdev: str = "eth1", gids: tuple[tuple[str, str], ...] = ()
) -> None:
    """Port 1 of a device, as the kernel shows it: empty rows have zeros, and attributes that can't be read."""
    port = root / "sys/class/infiniband" / device / "ports/1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    for row, (gid, kind) in enumerate((*gids, (EMPTY, ""))):
        (port / "gids" / str(row)).write_text(f"{gid}\n")
        if gid != EMPTY:
            (port / "gid_attrs/types" / str(row)).write_text(f"{kind}\n")
            (port / "gid_attrs/ndevs" / str(row)).write_text(f"{netdev}\n")


def test_a_kernel_without_rdma_has_no_devices(tmp_path: Path) -> None:
    assert devices(tmp_path) == ()


def test_ports_and_addresses_are_read_and_empty_rows_left_out(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", gids=((LINK_LOCAL, "RoCE v2"), (EMPTY, ""), (V4_MAPPED, "RoCE v2")))

    (device,) = devices(tmp_path)

    (port,) = device.ports
    assert (device.name, port.number, port.state, port.is_active) == ("rxe0", 1, "ACTIVE", True)
    assert [(gid.index, gid.ipv4) for gid in port.gids] == [(0, None), (2, IPv4Address("10.77.0.1"))]
