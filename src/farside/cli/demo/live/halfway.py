"""What happens halfway through a day that is played: a process is killed, a node joins, or another manager leads.

A manager that stands by is a real `farside manager` on the sandbox's store, with all settings of the sandbox's but its
name, its folder and where it listens. Agents and users know one name of the manager, its unix socket. When the manager
that leads is killed, that name is given to the other one, as is done with an address that two machines have in common:
a link to the other one's socket takes its place. Users with tokens come over TCP, where no such link can be: they are
told the other manager's port.
"""

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from farside.client.manager_client import SOCKET_IN_STATE, ManagerAddress, ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.ending import die_with, end_process
from farside.errors import FarsideError, PeerError
from farside.log import last_line
from farside.sandbox import control
from farside.sandbox.cluster import MANAGER, START_LIMIT_S
from farside.sandbox.files import free_port
from farside.sandbox.layout import RUN_FOLDER
from farside.sandbox.process import END_LIMIT_S, command
from farside.sandbox.waiting import wait_until

SCHEDULER = "brain"
FIRST, STANDBY = MANAGER, "standby"
"""Node names of the manager that leads first and of the one that stands by, by which the log knows them."""


class Halfway(StrEnum):
    """What happens between the first submission and the last."""

    NOTHING = "nothing"
    KILL = "the scheduler process is killed"
    JOIN = "a node joins"
    LEADER = "the manager that leads is killed, and another one leads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """What was done. ``killed_s``: the moment before the kill; infinite: nothing was killed.

    ``endpoint``: where users with tokens reach the manager from then on; empty: where they did.
    """

    killed_s: float = math.inf
    endpoint: str = ""


Act = Callable[[Collection[Future[Any]]], Acted]
"""Does it, once; it is given the submissions so far, some of which may be under way."""


@contextmanager
def prepared(halfway: Halfway, folder: Path, state: Path, node: str) -> Iterator[Act]:
    """Gets ready for what will happen, and ends what it started.

    Args:
        halfway: What will.
        folder: Of a manager that stands by; there is none yet.
        state: Of the sandbox.
        node: The one that joins; its agent was left for later.

    Raises:
        FarsideError: The other manager did not start, or the node did not join; this also where the body failed, whose
            error is its cause then.
    """
    match halfway:
        case Halfway.NOTHING:
            yield lambda _: Acted()
        case Halfway.KILL:
            yield lambda _: Acted(killed_s=_killed(state, SCHEDULER))
        case Halfway.JOIN:
            # Beside the submissions: an agent takes a second to start.
            with ThreadPoolExecutor(1) as beside:
                joining: list[Future[None]] = []

                def join(_: Collection[Future[Any]]) -> Acted:
                    joining.append(beside.submit(control.start_agent, state, node))
                    return Acted()

                try:
                    yield join
                except Exception as error:
                    # A node that did not join is why jobs that need it do not end.
                    for one in joining:
                        if (why := one.exception()) is not None:
                            raise why from error
                    raise
                for one in joining:
                    one.result()
        case Halfway.LEADER:
            with _standing_by(folder, state) as endpoint:
                yield lambda sent: _give_the_name(sent, folder, state, endpoint)


def _killed(state: Path, *parts: str) -> float:
    """Kills these processes of the sandbox's manager with SIGKILL; none named: all. Returns the time just before."""
    pids = json.loads((state / "manager" / RUN_FOLDER / "manager.json").read_text())["pids"]
    before_s = time.time()
    # The parent comes first there, so that it starts none of the others again.
    for part in parts or pids:
        with suppress(ProcessLookupError):  # the kernel ends them with their parent
            os.kill(pids[part], signal.SIGKILL)
    return before_s


@contextmanager
def _standing_by(folder: Path, state: Path) -> Iterator[str]:
    """A second manager on the sandbox's store, until the block is left: where users with tokens reach it."""
    # As long as nobody leads, the one that is to stand by would.
    wait_until(lambda: _has_leader(find_manager(state=state)), "the first manager to lead", limit_s=START_LIMIT_S)
    folder.mkdir()
    port = free_port()
    told = {
        "node": STANDBY,
        "listen": json.dumps([f"unix:{folder / SOCKET_IN_STATE}", f"tcp:127.0.0.1:{port}"]),
        "state_dir": os.fspath(folder / RUN_FOLDER),
    }
    words = [word for name, value in told.items() for word in ("--set", f"{name}={value}")]
    argv = command("manager", "--config", os.fspath(sandbox_config(state)), *words)
    parent = os.getpid()
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=lambda: die_with(parent, signal.SIGTERM),
        )  # fmt: skip

    def stands_by() -> bool:
        if process.poll() is not None:
            said = last_line(folder / "log") or "it said nothing"
            raise PeerError(f"the manager that stands by ended at once: {said}")
        return _has_leader(ManagerAddress(endpoint=f"unix:{folder / SOCKET_IN_STATE}"))

    try:
        wait_until(stands_by, "the manager that stands by to answer", limit_s=START_LIMIT_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        end_process(process, END_LIMIT_S)  # the kernel ends its parts with it


def _has_leader(address: ManagerAddress) -> bool:
    """Whether the manager there answers, and has read from the log that one leads; which one it does not say."""
    with suppress(FarsideError), ManagerClient(address) as client:
        return bool(client.get("health")["generation"])
    return False


def _give_the_name(sent: Collection[Future[Any]], folder: Path, state: Path, endpoint: str) -> Acted:
    # What is submitted with no answer may be in the log or not: a user would have to look. Here none is under way.
    wait(sent)
    killed_s = _killed(state)
    link = folder / "name"
    link.symlink_to(folder / SOCKET_IN_STATE)
    link.replace(state / SOCKET_IN_STATE)
    return Acted(killed_s=killed_s, endpoint=endpoint)
