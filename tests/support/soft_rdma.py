"""Soft RDMA links (rxe) on a network device, by iproute2's `rdma`; for tests and benchmarks, as root."""

import subprocess

from farside.kmod_shim.rdma.devices import Gid, devices

ROCE_V2 = "RoCE v2"
# Without the module the kernel has no RDMA netlink for `rdma` to speak to.
ADD_RXE0 = "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth1"


def add_link(name: str, netdev: str) -> None:
    """Makes the RDMA device `name` of the network device `netdev`; returns before its port is active."""
    subprocess.run(["modprobe", "rdma_rxe"], check=True)
    subprocess.run(["rdma", "link", "add", name, "type", "rxe", "netdev", netdev], check=True)


def remove_link(name: str) -> None:
    """Removes the device `name`; Linux 6.1 does so only when no process has it open."""
    subprocess.run(["rdma", "link", "delete", name], check=True)


def roce_gid(name: str) -> Gid | None:
    """The row of the device's active port that programs connect by: RoCE v2, over IPv4. None while there is none."""
    ports = [port for device in devices() if device.name == name for port in device.ports if port.is_active]
    return next((gid for port in ports for gid in port.gids if gid.kind == ROCE_V2 and gid.ipv4 is not None), None)
