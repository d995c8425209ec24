"""Checks of `farside doctor` on folders that a program writes, and on addresses and sockets that it listens at.

Nothing is made, and nobody is disturbed: a port is bound and let go without listening, and a socket is connected to.
"""

import errno
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from farside.endpoint import parse_endpoint
from farside.kmod_shim.preflight import Check, Outcome


def is_served(path: Path) -> bool:
    """Whether a process listens at a unix socket, as far as this user may ask; one that may not takes it to be so."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a full queue is an answer too: somebody listens
        try:
            probe.connect(os.fspath(path))
        except (BlockingIOError, PermissionError):
            return True
        except (OSError, ValueError):
            return False
    return True


def folder_checks(setting: str, folder: Path, *, name: str = "state") -> Iterator[Check]:
    """A failed check if a folder can't be made or written by this user; none if it can."""
    if why := _why_not_writable(folder):
        advice = "run `farside doctor` as the program's user, or name another folder"
        yield Check(name=name, outcome=Outcome.FAILED, found=f"{setting} {folder}: {why}", advice=advice)


def _why_not_writable(folder: Path) -> str:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} can't be written by this user"


def listen_checks(setting: str, endpoints: Iterable[str], *, is_running: bool) -> Iterator[Check]:
    """What would keep a program from listening at each endpoint; one that is well has a line too.

    ``is_running``: the program runs, so what listens there is taken to be it.
    """
    for endpoint in endpoints:
        try:
            where = parse_endpoint(endpoint)
            why = _why_no_socket(Path(where)) if isinstance(where, str) else _why_no_port(*where)
        except ValueError as error:
            why = str(error)
        if why == _IN_USE and is_running:
            yield Check(name=setting, outcome=Outcome.OK, found=f"{endpoint}: in use, by this program, which runs")
        elif why:
            advice = (
                "end what listens there (ss -ltnpx shows it), or name another" if why == _IN_USE else f"set {setting}"
            )
            yield Check(name=setting, outcome=Outcome.FAILED, found=f"{setting} {endpoint}: {why}", advice=advice)
        else:
            yield Check(name=setting, outcome=Outcome.OK, found=f"{endpoint}: free")


_IN_USE = "another process listens there"


def _why_no_port(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # As the program does it: a port whose last connections have just ended is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return _IN_USE if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""


def _why_no_socket(path: Path) -> str:
    with suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return "a file that is no socket is there"
        if is_served(path):
            return _IN_USE
    return _why_not_writable(path.parent)
