"""Connection to the manager of this machine by its unix socket, whose other end the kernel names.

Port 7680 is free while the manager restarts, and any program of any user may take it. A unix socket can be taken in the
same way, but the kernel says which user listens there (SO_PEERCRED, unix(7)), before anything is sent.
"""

import os
import pwd
import socket

from farside.errors import ConfigError
from farside.listen import peer_uid

MANAGER_USER = "farside-manager"  # of the package: systemd/sysusers.d/farside.conf


def connect_near(path: str) -> socket.socket:
    """A connection to the manager that listens on the unix socket. Blocks for as long as its queue is full.

    Raises:
        OSError: nobody listens there.
        ConfigError: another user than the manager's does.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise ConnectionRefusedError(error.errno, "no manager listens on this socket") from error
        # The user who called listen(2): nobody can change it afterwards.
        uid = peer_uid(sock)
        if uid not in manager_uids():
            hint = f"end that program; only root, {MANAGER_USER} and the agent's own user may listen there"
            raise ConfigError(f"{path}: a program of uid {uid} listens in the manager's place", hint=hint)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def manager_uids() -> frozenset[int]:
    """The users whose programs may be the manager of this machine: root, the package's user, and the agent's own."""
    found = {0, os.geteuid()}
    try:
        found.add(pwd.getpwnam(MANAGER_USER).pw_uid)
    except KeyError:
        pass
    return frozenset(found)
