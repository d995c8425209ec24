"""What tries to fill a manager's store, for `store_flood.py`: a user by requests, or a node by connections and reports.

A process of its own that takes only processor time that nobody else wants (SCHED_IDLE), as such a client would be
another machine. It asks again as soon as it is answered, whatever the answer, and prints how often it was let.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import Literal

import msgspec
from websockets.exceptions import WebSocketException

from farside.agent import messages as m
from farside.agent import protocol
from farside.agent.line import Line, open_proved_line
from farside.errors import FarsideError

CONNECTIONS = 8  # of the user
UNDER_WAY = 16  # reports that the node sends before it waits for an answer
BATCHES = 10  # of such reports on one connection; the next one says other facts again
LONG = "x" * 130_000  # of one argument or variable; two of each are the most that a submission may have
ENTRIES, LONG_ENTRIES, REPORTS, CONNECTED, REFUSED = "entries", "long submissions", "reports", "connections", "refused"


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """What such a process is told: as whom it comes, where to, and for how long."""

    kind: Literal["user", "node"]
    name: str
    token: str
    port: int
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Attacks as told in JSON, prints what was let in as JSON; 0."""
    attack = msgspec.json.decode(arguments[0], type=Attack)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    done = _as_user(attack) if attack.kind == "user" else asyncio.run(_as_node(attack))
    print(json.dumps(done))
    return 0


# ---------------------------------------------------------------------------------------------------- a user


def _as_user(attack: Attack) -> Counter[str]:
    """Half of the connections hold a job and release it, half submit as much as a job may have and cancel it."""
    end_s = time.monotonic() + attack.seconds
    with closing(_User(attack)) as user:
        never = user.submit({"argv": ["true"], "hold": True})
    work: tuple[Callable[[_User, str], None], ...] = (_hold_and_release, _submit_and_cancel)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        users = [pool.submit(_loop, attack, work[number % len(work)], never, end_s) for number in range(CONNECTIONS)]
        return sum((one.result() for one in users), Counter[str]())


def _loop(attack: Attack, work: Callable[["_User", str], None], never: str, end_s: float) -> Counter[str]:
    with closing(_User(attack)) as user:
        while time.monotonic() < end_s:
            try:
                work(user, never)
            except OSError:
                user.close()  # it hung up; the next request connects again
        return user.done


def _hold_and_release(user: "_User", never: str) -> None:
    # Behind a job that never runs it does not start when it is released.
    job = user.own or user.submit({"argv": ["true"], "after": [never]})
    user.own = job
    for what in ("hold", "release") if job else ():
        user.ask(f"jobs/{job}/{what}", None, ENTRIES)


def _submit_and_cancel(user: "_User", never: str) -> None:
    body = {"argv": ["true", LONG, LONG], "env": {"A": LONG, "B": LONG}, "after": [never]}
    job = user.submit(body, LONG_ENTRIES)
    if job:
        user.ask(f"jobs/{job}/cancel", None, ENTRIES)


class _User:
    """One connection of the user.

    Attributes:
        own: A job that it may hold and release; empty: none yet.
        done: What was let, and what was refused.
    """

    def __init__(self, attack: Attack) -> None:
        self._http = HTTPConnection("127.0.0.1", attack.port, timeout=60)
        self._head = {"Authorization": f"Bearer {attack.token}", "Content-Type": "application/json"}
        self.own, self.done = "", Counter[str]()

    def close(self) -> None:
        self._http.close()

    def submit(self, body: Mapping[str, object], counts: str = ENTRIES) -> str:
        """Its id; empty: it was refused."""
        told = self.ask("jobs", json.dumps(body), counts)
        return str(json.loads(told)["ids"][0]) if told else ""

    def ask(self, path: str, body: str | None, counts: str) -> bytes:
        """The answer; empty: it was refused."""
        self._http.request("POST", f"/v1/{path}", body, self._head)
        response = self._http.getresponse()
        text = response.read()
        is_refused = response.status >= 400
        self.done[REFUSED if is_refused else counts] += 1
        return b"" if is_refused else text


# ---------------------------------------------------------------------------------------------------- a node


async def _as_node(attack: Attack) -> Counter[str]:
    """Connects with other facts each time, reports with other facts each time, and hangs up to begin anew."""
    done: Counter[str] = Counter()
    try:
        async with asyncio.timeout(attack.seconds):
            for number in itertools.count():
                try:
                    async with open_proved_line(f"ws://127.0.0.1:{attack.port}", attack.token) as line:
                        await _session(attack.name, line, number, done)
                except (WebSocketException, FarsideError, OSError):
                    done[REFUSED] += 1
    except TimeoutError:
        pass  # its time is over
    return done


async def _session(name: str, line: Line, number: int, done: Counter[str]) -> None:
    side = protocol.AgentSide()
    await line.send(side.send(hello(name, number)))
    side.receive(await line.receive())
    done[CONNECTED] += 1
    reports = itertools.count(1)
    for _ in range(BATCHES):
        for at in itertools.islice(reports, UNDER_WAY):
            await line.send(side.send(report(number, at)))
        for _ in range(UNDER_WAY):
            while not isinstance(side.receive(await line.receive()), m.Ack):
                pass
            done[REPORTS] += 1


def hello(name: str, number: int) -> m.Hello:
    """All GPUs that a node may have, each with the longest words, none fit for a job, and a version of its own."""
    return m.Hello(
        node=name, boot_id="boot", incarnation=str(number), version=f"{number}".ljust(m.CAUSE_CHARS_MAX, "v"), cpus=64,
        memory_bytes=1 << 38, gpus=_gpus(number), headroom_bytes=1 << 38, tasks=(),
    )  # fmt: skip


def report(number: int, at: int) -> m.Report:
    """One that differs from the one before in all that a report may change."""
    return m.Report(
        seq=at, at_s=time.time(), headroom_bytes=(at % 2) << 38, psi=m.Psi(), gpus=_gpus(number + at), tasks=()
    )


def _gpus(number: int) -> tuple[m.Gpu, ...]:
    words = f"{number % 2}".ljust(m.CAUSE_CHARS_MAX, "w")
    return tuple(
        m.Gpu(index=at, model=words, healthy=False, reason=words, uuid=words) for at in range(m.GPUS_MAX)
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
