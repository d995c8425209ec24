"""nbd-client, the classic user-space tool: for kernels with nbd but without its netlink family (before 4.12).

What is lost with it: the device lives as long as the nbd-client process that sits in an ioctl, and a socket that has
died can't be given a new one. The server's side is the same, restarts included.
"""

import subprocess
from collections.abc import Sequence

from farside.endpoint import parse_endpoint
from farside.errors import ConfigError, Unavailable
from farside.kmod_shim.nbd.message import BLOCK_BYTES, TIMEOUT_S
from farside.kmod_shim.nbd.sysfs import device_path

LIMIT_S = 30.0  # to attach or detach; nbd-client goes into the background once the device is connected


def connect_command(
    endpoint: str, export: str, index: int, *, connections: int, is_swap: bool, netlink: bool = False
) -> list[str]:
    """The command line that attaches the export as /dev/nbdX.

    ``netlink``: by netlink after all, where nbd-client knows it; it then ends at once and the kernel keeps the device.
    """
    where = parse_endpoint(endpoint)
    # nbd-client takes host and port as two words, and a unix socket as an option.
    server = ["-unix", where] if isinstance(where, str) else [where[0], str(where[1])]
    return [
        "nbd-client",
        *server,
        device_path(index),
        *("-name", export),
        *("-block-size", str(BLOCK_BYTES)),
        *("-timeout", str(TIMEOUT_S)),
        *("-connections", str(connections)),
        *(["-swap"] if is_swap else []),
        *([] if netlink else ["-nonetlink"]),
    ]


def attach_by_client(endpoint: str, export: str, index: int, *, connections: int, is_swap: bool) -> None:
    """Attaches; nbd-client goes on in the background. Raises ConfigError with its own words, Unavailable without it."""
    _run(connect_command(endpoint, export, index, connections=connections, is_swap=is_swap))


def detach_by_client(index: int) -> None:
    """Disconnects the device, and so ends the nbd-client that holds it. Raises ConfigError."""
    _run(["nbd-client", "-d", device_path(index)])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except FileNotFoundError as error:
        raise Unavailable("nbd-client is missing", hint="apt-get install nbd-client") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{' '.join(command)}: not done after {LIMIT_S:g} s", hint="see dmesg") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise ConfigError(f"nbd-client ended with {done.returncode}: {said[-300:]}")
