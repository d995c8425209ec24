"""`farside blockdev`: check the settings, make what a device needs, and supervise its server process."""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from farside.blockdev.client.tls_keys import read_tls
from farside.blockdev.disk import open_disk
from farside.blockdev.params import decode_config, make_memory
from farside.blockdev.peers_file import read_peers
from farside.blockdev.supervisor import Supervisor
from farside.config import BlockdevConfig
from farside.daemon.control.keys import read_keys
from farside.ending import leave_no_core_dump
from farside.endpoint import is_near, parse_endpoint
from farside.errors import ConfigError, FarsideError
from farside.kmod_shim.guard import outlive_shutdown
from farside.listen import clear_stale, close_listener, open_listener
from farside.log import get_log, start_logging
from farside.notify import notify_systemd, take_given_fds

CONFIG_BYTES_MAX = 1 << 20  # more than any settings take
MEMORY = {"state", "control", "config"}  # with these a device can go on

log = get_log("blockdev")


def run(config: BlockdevConfig, *, stdio: bool = False) -> int:
    """Serves the device until SIGTERM; with ``stdio`` one client on standard input and output. Returns the exit code.

    Raises:
        ConfigError: a setting, file or socket is not usable; one line.
    """
    start_logging(config.log_level)
    leave_no_core_dump()
    _, listening = take_given_fds()
    return _begin(config, listening, stdio=stdio)


def run_as_service(load: Callable[[], BlockdevConfig]) -> int:
    """Run below a service manager that keeps our descriptors: a device whose descriptors it passes in goes on.

    ``load`` reads the settings. A device that goes on has those that it was started with, even where their files have
    become unusable meanwhile: programs of this machine have their pages on it.
    """
    outlive_shutdown()
    leave_no_core_dump()
    given, listening = take_given_fds()
    # Anything less is no device: a service that starts for the first time, or descriptors of another kind.
    if given.keys() >= MEMORY:
        return _go_on(load, given)
    config = load()
    start_logging(config.log_level)
    return _begin(config, listening, keeps_fds=True)


def _begin(config: BlockdevConfig, listening: list[int], *, stdio: bool = False, keeps_fds: bool = False) -> int:
    # Read only to be found wrong now, before anything is made; the server process reads them anew.
    read_keys(config.key_file)
    read_peers(config.peers_file)
    if config.has_tls:
        read_tls(config).destroy()
    if config.protection == "none":
        log.warning("NO PROTECTION: when a donor goes, its pages are LOST and programs that need them are killed")
    _refuse_open_doors(config)
    fds = make_memory(config)
    fds["config"] = _config_memory(config)
    if not stdio:
        # Before the disk: if it fails, no backup file of the device's size is left behind.
        _make_state_dir(config)
    if config.protection == "disk":
        fds["disk"] = open_disk(config.disk_path, config.size_bytes)
    if stdio:
        from farside.blockdev.client.stdio import serve_stdio

        return serve_stdio(config, fds)
    # Listening sockets are made here once and kept by the supervisor: clients queue in them while no server runs.
    _add_listeners(config, fds, listening)
    try:
        supervisor = Supervisor(fds, on_ready=_say_ready, name=config.name, keeps_fds=keeps_fds)
        if config.pressure_guard == "start":
            _guard(supervisor)
        return supervisor.run()
    finally:
        # Sockets that our parent has made are the parent's to remove.
        if not listening:
            _clear_sockets(config)


def _go_on(load: Callable[[], BlockdevConfig], fds: dict[str, int]) -> int:
    # The settings of the start, not those of the files: the memory files were made for them.
    config = decode_config(os.pread(fds["config"], CONFIG_BYTES_MAX, 0))
    start_logging(config.log_level)
    log.info("supervisor takes over the running device", descriptors=len(fds))
    try:
        if load() != config:
            log.warning("the device keeps the settings of its start; new ones apply after a stop")
    except FarsideError as error:
        log.error("the settings are not valid any more; the device keeps those of its start", reason=error)
    try:
        return Supervisor(fds, on_ready=_say_ready, name=config.name, keeps_fds=True).run()
    finally:
        _clear_sockets(config)


def _say_ready() -> None:
    notify_systemd("READY=1\nSTATUS=Serving")


def _guard(supervisor: Supervisor) -> None:
    for failure in supervisor.guard():
        raise ConfigError(
            f"pressure_guard = 'start': {failure.what}: {failure.reason}",
            hint="start it as root, or with CAP_SYS_RESOURCE, CAP_SYS_NICE, CAP_IPC_LOCK and a cgroup; or set 'attach'",
        )


def _clear_sockets(config: BlockdevConfig) -> None:
    for endpoint in config.listen:
        if endpoint.startswith("unix:"):
            with suppress(OSError):  # in use: a server that lives on has it, or the manager, for the next one
                clear_stale(endpoint.removeprefix("unix:"))


def _add_listeners(config: BlockdevConfig, fds: dict[str, int], activated: list[int]) -> None:
    """Adds the listening sockets to ``fds``: those that our parent opened for us, as systemd and libnbd do, or ours."""
    sockets = activated or _open_listeners(config.listen)
    fds.update({f"listen:{number}": fd for number, fd in enumerate(sockets)})


def _refuse_open_doors(config: BlockdevConfig) -> None:
    """A listener that only serves machines from which nobody is let in is a mistake of the settings."""
    for endpoint in config.listen:
        try:
            where = parse_endpoint(endpoint)
        except ValueError as error:
            raise ConfigError(f"listen {endpoint}: {error}") from error
        if not isinstance(where, str) and not is_near(where[0]) and not (config.listen_unproved or config.has_tls):
            hint = (
                "name tls_psk_file or tls_cert, or listen on 127.0.0.1 or a unix: socket, or set "
                "listen_unproved = true behind a firewall"
            )
            raise ConfigError(f"listen {endpoint}: NBD by TCP proves nothing, and others reach that address", hint=hint)


def _open_listeners(endpoints: Sequence[str]) -> list[int]:
    opened: list[socket.socket] = []
    try:
        for endpoint in endpoints:
            opened.append(open_listener(endpoint))
    except ConfigError:
        for listener in opened:
            close_listener(listener)  # with its file
        raise
    return [listener.detach() for listener in opened]


def _make_state_dir(config: BlockdevConfig) -> None:
    try:
        config.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"state_dir {config.state_dir}: {error.strerror}; name a folder that can be made") from error


def _config_memory(config: BlockdevConfig) -> int:
    """Settings in a memory file, so that each server process has the same, whatever happens to the files."""
    fd = os.memfd_create("farside-config", os.MFD_CLOEXEC)
    os.write(fd, msgspec.json.encode(config, enc_hook=os.fspath))
    return fd
