"""Soft RoCE: an RDMA device (rxe) made of any network device, and removed again.

For machines without an RDMA card, and for tests. `modprobe` and the kernel's RDMA netlink do the work; the `rdma`
program of iproute2 speaks the same netlink and is not needed.
"""

import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from farside.errors import ConfigError, EngineError, FarsideError, Unavailable
from farside.kmod_shim import rdma_netlink
from farside.kmod_shim.rdma_netlink import Acknowledged, Answer, Listed

KIND = "rxe"
_MODULE = "rdma_rxe"
_ANSWER_LIMIT_S = 10.0  # making a link takes about 0.1 s, emulated

# Sends one request to the kernel, returns its answers; a test gives one of its own.
Ask = Callable[[bytes], Iterable[Answer]]


def create_link(name: str, netdev: str, *, root: Path = Path("/"), ask: Ask | None = None) -> None:
    """Makes the RDMA device `name` of the network device `netdev`, and loads the driver if need be.

    Raises:
        ConfigError: No such network device, or there is an RDMA device of that name or on that network device.
        Unavailable: The kernel has no rdma_rxe, or this process may not (CAP_NET_ADMIN).
    """
    present = sorted(path.name for path in (root / "sys/class/net").iterdir())
    if netdev not in present:
        raise ConfigError(f"{name}: no network device {netdev}", hint=f"there are: {', '.join(present)}")
    if (root / "sys/class/infiniband" / name).exists():
        raise ConfigError(f"there is an RDMA device {name} already", hint="take another name, or use that one")
    _load_driver(root)
    _change(rdma_netlink.new_link(1, name=name, kind=KIND, netdev=netdev), name, netdev, ask or ask_kernel)


def remove_link(name: str, *, ask: Ask | None = None) -> None:
    """Removes the soft RDMA device `name`; connections over it end with errors.

    Raises:
        ConfigError: No such device, or one that is hardware.
        Unavailable: This process may not.
    """
    ask = ask or ask_kernel
    listed = {one.name: one.index for one in ask(rdma_netlink.list_devices(1)) if isinstance(one, Listed)}
    if name not in listed:
        raise ConfigError(f"no RDMA device {name}", hint=f"there are: {', '.join(sorted(listed)) or 'none'}")
    _change(rdma_netlink.delete_link(2, index=listed[name]), name, "", ask)


def ask_kernel(request: bytes) -> list[Answer]:
    """All answers of the kernel to one request, the acknowledgement last.

    Raises:
        Unavailable: The kernel knows no RDMA.
    """
    try:
        link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, rdma_netlink.NETLINK_RDMA)
    except OSError as error:
        raise Unavailable(
            f"no RDMA in this kernel: {error.strerror}", hint="modprobe ib_core; a Debian kernel has it"
        ) from error
    with link:
        link.settimeout(_ANSWER_LIMIT_S)
        link.send(request)
        answers: list[Answer] = []
        while not (answers and isinstance(answers[-1], Acknowledged)):
            answers += rdma_netlink.parse_answers(link.recv(rdma_netlink.ANSWER_BYTES))
        return answers


def _change(request: bytes, name: str, netdev: str, ask: Ask) -> None:
    failed = next((one.errno for one in ask(request) if isinstance(one, Acknowledged)), errno.EPROTO)
    if failed:
        raise _refusal(failed, name, netdev)


def _refusal(failed: int, name: str, netdev: str) -> FarsideError:
    if failed in (errno.EPERM, errno.EACCES):
        return Unavailable(f"{name}: the kernel lets only root change RDMA links", hint="run as root (CAP_NET_ADMIN)")
    if failed == errno.EEXIST:
        return ConfigError(f"{name}: {netdev} has an RDMA device, or the name is taken", hint="see `rdma link show`")
    if failed == errno.EOPNOTSUPP:
        return ConfigError(f"{name} is no soft RDMA device", hint="only those made by farside or `rdma link add` go")
    if failed == errno.EINVAL and netdev:
        return ConfigError(
            f"{name}: the kernel makes no RDMA device of {netdev}", hint="it takes Ethernet and loopback"
        )
    return EngineError(f"RDMA link {name}", failed)


def _load_driver(root: Path) -> None:
    if (root / "sys/module" / _MODULE).exists():
        return
    try:
        done = subprocess.run(["modprobe", _MODULE], capture_output=True, text=True, timeout=60, check=False)
        said = done.stderr.strip() or "modprobe does not say why" if done.returncode else ""
    except FileNotFoundError:
        said = "modprobe is not installed"
    if said:
        release = os.uname().release
        raise Unavailable(f"{_MODULE} can't be loaded into {release}: {said}", hint="linux-image-amd64 has it; as root")
