"""`farside blockdev`: checks the settings, makes what a device needs, and supervises a server process over it."""

import os
from contextlib import suppress

import msgspec

from farside.blockdev.disk import open_disk
from farside.blockdev.params import make_memory
from farside.blockdev.peerfile import read_peers
from farside.blockdev.supervisor import Supervisor
from farside.config import BlockdevConfig
from farside.daemon.keys import read_keys
from farside.errors import ConfigError
from farside.listen import clear_stale, open_listener
from farside.log import get_log, start_logging
from farside.notify import notify_systemd

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
        supervisor = Supervisor(fds, on_ready=lambda: notify_systemd("READY=1"), name=config.name)
        if config.pressure_guard == "start":
            _guard(supervisor)
        return supervisor.run()
    finally:
        for path in paths:
            with suppress(OSError):  # in use: an orphan of an earlier supervisor's, or the next one's
                clear_stale(path)


def _guard(supervisor: Supervisor) -> None:
    for failure in supervisor.guard():
        raise ConfigError(
            f"pressure_guard = 'start': {failure.what}: {failure.reason}",
            hint="start it as root, or with CAP_SYS_RESOURCE, CAP_IPC_LOCK and a cgroup of its own; or set 'attach'",
        )


def _add_listeners(config: BlockdevConfig, fds: dict[str, int]) -> list[str]:
    """Adds the listening sockets to ``fds``; returns the unix paths that are ours to remove."""
    activated = _activated_sockets()
    for number, fd in enumerate(activated):
        fds[f"listen:{number}"] = fd
    paths: list[str] = []
    for number, endpoint in enumerate(() if activated else config.listen):
        fds[f"listen:{number}"] = open_listener(endpoint).detach()
        if endpoint.startswith("unix:"):
            paths.append(endpoint.removeprefix("unix:"))
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
