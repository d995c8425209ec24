"""`farside blockdev`: checks the settings, makes what a device needs, and supervises a server process over it."""

import os
import socket
from contextlib import suppress

import msgspec

from farside.blockdev.disk import open_disk
from farside.blockdev.listener import open_listener
from farside.blockdev.params import make_memory
from farside.blockdev.peerfile import read_peers
from farside.blockdev.supervisor import Supervisor
from farside.config import BlockdevConfig
from farside.daemon.keys import read_keys
from farside.endpoint import parse_endpoint
from farside.errors import ConfigError
from farside.log import get_log, start_logging

LISTEN_FDS_START = 3  # sd_listen_fds(3)

log = get_log("blockdev")


def run(config: BlockdevConfig, *, stdio: bool = False) -> int:
    """Serves the device until SIGTERM; with ``stdio`` one client on standard input and output. Returns the exit code.

    Raises:
        ConfigError: a setting, file or socket is not usable; one line.
    """
    start_logging(config.log_level)
    read_keys(config.key_file)
    read_peers(config.peers_file)
    if config.protection == "none":
        log.warning("NO PROTECTION: when a donor goes, its pages are LOST and programs that need them are killed")
    fds = make_memory(config)
    fds["config"] = _config_memory(config)
    if config.protection == "disk":
        fds["disk"] = open_disk(config.disk_path, config.size_bytes)
    if stdio:
        from farside.blockdev.stdio import serve_stdio

        return serve_stdio(config, fds)
    config.state_dir.mkdir(parents=True, exist_ok=True)
    paths = _add_listeners(config, fds)
    try:
        return Supervisor(fds, on_ready=_say_ready).run()
    finally:
        for path in paths:
            with suppress(OSError):
                os.unlink(path)


def _add_listeners(config: BlockdevConfig, fds: dict[str, int]) -> list[str]:
    """Adds the listening sockets to ``fds``; returns the unix paths that are ours to remove."""
    activated = _activated_sockets()
    for number, fd in enumerate(activated):
        fds[f"listen:{number}"] = fd
    paths: list[str] = []
    for number, text in enumerate(() if activated else config.listen):
        endpoint = parse_endpoint(text)
        try:
            fds[f"listen:{number}"] = open_listener(endpoint).detach()
        except OSError as error:
            raise ConfigError(f"listen {text}: {error.strerror}") from error
        if isinstance(endpoint, str):
            paths.append(endpoint)
    return paths


def _activated_sockets() -> list[int]:
    """Listening sockets that our parent opened for us (LISTEN_FDS), as systemd and libnbd do."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(os.environ.get("LISTEN_FDS", "0"))
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    fds = list(range(LISTEN_FDS_START, LISTEN_FDS_START + count))
    for fd in fds:
        os.set_inheritable(fd, False)
    return fds


def _config_memory(config: BlockdevConfig) -> int:
    """The settings in a memory file, so that each server process has the very same, whatever became of the files."""
    fd = os.memfd_create("farside-config", os.MFD_CLOEXEC)
    os.write(fd, msgspec.json.encode(config, enc_hook=os.fspath))
    return fd


def _say_ready() -> None:
    """sd_notify(3), where there is someone to hear it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock, suppress(OSError):
        sock.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
