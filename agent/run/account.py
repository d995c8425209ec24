"""Account of a task: the submitting user where the agent can become that user, never uid 0.

A sandbox runs all tasks as the user who started it (``run_as = "starter"``), and says so.
"""

import os
import pwd
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from farside.errors import ConfigError, FarsideError


class Refused(FarsideError):
    """Refusal of a task by this node; the text goes to the manager as the cause."""


class Account(Struct, frozen=True, kw_only=True):
    """A user of this machine. ``becomes`` is False where the task stays what the agent is."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    becomes: bool


def account_of(user: str, *, run_as: str, allowed: Collection[str]) -> Account:
    """The account of a task of this user. ``allowed`` empty: everybody but uid 0.

    Raises:
        Refused: the user is unknown, not allowed, root, or nobody that this agent can become.
    """
    if run_as == "starter":
        return _account(pwd.getpwuid(os.geteuid()), becomes=False)
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise Refused(f"no user {user} on this node") from None
    # Asked of the number: an account of any name may have uid 0.
    if found.pw_uid == 0:
        raise Refused(f"user {user} is uid 0, and no task runs as uid 0")
    if allowed and user not in allowed:
        raise Refused(f"user {user} is not in this node's setting users")
    ours = os.geteuid()
    if ours not in (0, found.pw_uid):
        raise Refused(f"this agent runs as uid {ours} and can run tasks of that user only, not of {user}")
    return _account(found, becomes=ours == 0)


def users_here(*, run_as: str, allowed: Collection[str]) -> tuple[str, ...]:
    """Users whose tasks this agent runs, by name; empty: all but uid 0, or unknown.

    Raises:
        ConfigError: ``allowed`` are others than the one user whose tasks it can run.
    """
    if run_as == "starter":
        return ()
    if not os.geteuid():
        return tuple(sorted(allowed))
    try:
        own = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ()
    if allowed and own not in allowed:
        raise ConfigError(
            f"users: {own} is missing, and an agent that runs as {own} can run tasks of {own} only",
            hint=f"name {own}, or start the agent as root",
        )
    return (own,)


def become(account: Account) -> None:
    """Change this process to the account's user, for good. Between fork and exec only.

    Raises:
        OSError: the kernel refuses.
    """
    if not account.becomes:
        return
    # Groups first: once the user is changed, the kernel allows none of this any more.
    os.initgroups(account.name, account.gid)
    # Real, effective and saved: a saved uid of 0 would be a way back to root.
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    # Not an assert: python -O must not turn a job into root.
    if 0 in os.getresuid() or 0 in os.getresgid():
        raise PermissionError("this process is still root")


def identity(user: str, uid: int, gid: int) -> dict[str, Any]:
    """Arguments with which `subprocess` starts a program as this user."""
    return {"user": uid, "group": gid, "extra_groups": os.getgrouplist(user, gid)}


def _account(found: pwd.struct_passwd, *, becomes: bool) -> Account:
    return Account(
        name=found.pw_name,
        uid=found.pw_uid,
        gid=found.pw_gid,
        home=found.pw_dir,
        shell=found.pw_shell or "/bin/sh",
        becomes=becomes,
    )
