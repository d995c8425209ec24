"""Open-loop load on a deployment: requests are sent at times drawn beforehand, whatever becomes of those before.

A client that waits for an answer before it sends the next request hides every stall. Here each request takes a free
connection or a new one at its time, and its latency counts from that intended time.

It stands for programs on other machines, so it goes before what serves on this one where it may: else its own delays
would count as the server's.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from farside.agent.serving.priority import go_first

Outcome = Literal["met", "late", "dropped", "rejected", "failed", "refused", "lost", "doubled", "wrong"]
OUTCOMES: tuple[Outcome, ...] = (
    "met", "late", "dropped", "rejected", "failed", "refused", "lost", "doubled", "wrong",
)  # fmt: skip
ANSWER_LIMIT_S = 15.0
# A server may close a connection that nobody uses, just when a request is sent on it: those that lie so long are left.
KEPT_S = 30.0
CLIENT_NICE = -15
_LOOK_EVERY_S = 1.0
_BY_STATUS: Mapping[int, Outcome] = {504: "dropped", 500: "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model to ask: its input's name and the shape of a row, all FP32, and its SLO."""

    model: str
    input: str
    shape: tuple[int, ...]
    slo_ms: float


@dataclass(slots=True)
class Ended:
    """What became of one request: when it was to be sent, by the clock of the run, and how long it took from then."""

    model: str
    at_s: float
    outcome: Outcome = "lost"
    latency_s: float = 0.0


@dataclass(slots=True)
class Result:
    """All requests of a run, and how late the client itself sent them at worst."""

    ended: list[Ended] = field(default_factory=list[Ended])
    behind_s: float = 0.0

    def counts(self, model: str = "", since_s: float = 0.0, until_s: float = float("inf")) -> Counter[Outcome]:
        """Outcomes of one model or all, of requests that were to be sent in a time."""
        chosen = (one for one in self.ended if since_s <= one.at_s < until_s and model in ("", one.model))
        return Counter(one.outcome for one in chosen)

    def violated_share(self, model: str = "", since_s: float = 0.0, until_s: float = float("inf")) -> float:
        """The share of requests that were not met."""
        counts = self.counts(model, since_s, until_s)
        return (counts.total() - counts["met"]) / counts.total() if counts.total() else 0.0

    def goodput(self, seconds: float) -> float:
        """Requests a second that were answered within their SLO."""
        return self.counts()["met"] / seconds

    def latency_ms(self, share: float, model: str = "") -> float:
        """A quantile of the answered requests' latency; 0 without any."""
        taken = sorted(
            one.latency_s for one in self.ended if one.outcome in ("met", "late") and model in ("", one.model)
        )
        return 1000 * taken[min(len(taken) - 1, int(share * len(taken)))] if taken else 0.0


def poisson(rates: Mapping[str, float], seconds: float, seed: int, start_s: float = 0.0) -> list[tuple[float, str]]:
    """Times and models of Poisson requests, ascending."""
    rng = random.Random(seed)
    found: list[tuple[float, str]] = []
    for model, rate in sorted(rates.items()):
        at_s = start_s
        while rate > 0:
            at_s += rng.expovariate(rate)
            if at_s >= start_s + seconds:
                break
            found.append((at_s, model))
    return sorted(found)


class _Connection(asyncio.Protocol):
    """One HTTP connection with at most one request under way; it reports the answer to the run."""

    def __init__(self, run: "_Run") -> None:
        self._run = run
        self.transport: asyncio.Transport | None = None
        self.ended: Ended | None = None  # of the request under way, or the last one
        self.number = 0
        self.is_busy = self.is_doubled = False
        self.since_s = 0.0  # since then it is under way, or free
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Is ready."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Takes answers apart."""
        self._buffer = data = self._buffer + data if self._buffer else data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            whole = end + 4 + length
            if len(data) < whole:
                return
            body, self._buffer = data[end + 4 : whole], data[whole:]
            data = self._buffer
            if self.is_busy:
                self._run.answered(self, int(head[9:12]), body)
            elif self.ended is not None:
                self.ended.outcome, self.is_doubled = "doubled", True

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        self.transport = None
        if self.is_busy:
            self._run.lost(self)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A model's request without its number, which has nine digits and comes between ``before`` and ``after``."""

    slo_s: float
    before: bytes
    after: bytes


class OpenLoop:
    """The client.

    A request costs it no task and no timer of its own, and only its number is written anew: what the client takes of a
    machine's cores, servers on it lose.

    Args:
        host: Of the HTTP door.
        port: Of it.
        targets: By model.
    """

    def __init__(self, host: str, port: int, targets: Mapping[str, Target]) -> None:
        self._host, self._port = host, port
        rng = np.random.default_rng(1)
        self._prepared = {
            name: _prepared(one, rng.random(one.shape, dtype=np.float32).tobytes()) for name, one in targets.items()
        }

    async def run(self, times: Sequence[tuple[float, str]]) -> Result:
        """Sends requests at seconds from now; returns when each has ended. This thread goes first meanwhile."""
        before = os.getpriority(os.PRIO_PROCESS, 0)
        go_first(CLIENT_NICE)
        try:
            return await _Run(self._host, self._port, self._prepared, times).over()
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, before)


class _Run:
    """Requests of one run: a timer sends them, and connections report their answers."""

    def __init__(
        self, host: str, port: int, prepared: Mapping[str, _Prepared], times: Sequence[tuple[float, str]]
    ) -> None:
        self._host, self._port, self._prepared, self._times = host, port, prepared, times
        self._loop = asyncio.get_running_loop()
        self._result = Result()
        self._began_s = self._loop.time() + 0.05
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._next = self._open = 0  # the next request's number, and how many have not ended
        self._free: list[_Connection] = []
        self._busy: dict[_Connection, None] = {}  # those that have waited longest first
        self._opening: set[asyncio.Task[None]] = set()
        self._timer = self._loop.call_at(self._began_s, self._send_due)
        self._limit = self._loop.call_later(_LOOK_EVERY_S, self._end_late)

    async def over(self) -> Result:
        """All of it."""
        try:
            await self._over
        finally:
            self._timer.cancel()
            self._limit.cancel()
            for task in self._opening:
                task.cancel()
            for connection in (*self._free, *self._busy):
                connection.is_busy = False
                if connection.transport is not None:
                    connection.transport.close()
        return self._result

    # ---- sending

    def _send_due(self) -> None:
        """Sends what is due, and looks again when the next one is."""
        try:
            times, result = self._times, self._result
            while self._next < len(times):
                at_s, model = times[self._next]
                left_s = self._began_s + at_s - self._loop.time()
                if left_s > 0:
                    self._timer = self._loop.call_at(self._began_s + at_s, self._send_due)
                    return
                result.behind_s = max(result.behind_s, -left_s)
                ended = Ended(model, at_s)
                result.ended.append(ended)
                self._open += 1
                self._next += 1
                self._send(self._next - 1, ended)
            self._look_over()
        except Exception as error:  # a timer has nobody to raise to
            self._fail(error)

    def _send(self, number: int, ended: Ended) -> None:
        kept_s, one = self._loop.time() - KEPT_S, self._prepared[ended.model]
        request = b"%b%09d%b" % (one.before, number, one.after)
        while self._free:
            connection = self._free.pop()
            if connection.transport is None:
                continue
            if connection.since_s >= kept_s:
                self._ask(connection, request, number, ended)
                return
            connection.transport.close()
        task = self._loop.create_task(self._send_on_new(request, number, ended))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _send_on_new(self, request: bytes, number: int, ended: Ended) -> None:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                _, made = await self._loop.create_connection(lambda: _Connection(self), self._host, self._port)
        except (OSError, TimeoutError):
            self._ended()
        else:
            self._ask(made, request, number, ended)

    def _ask(self, connection: _Connection, request: bytes, number: int, ended: Ended) -> None:
        if connection.transport is None:  # the server has hung up at once
            self._ended()
            return
        connection.number, connection.ended, connection.is_busy = number, ended, True
        connection.since_s = self._loop.time()
        self._busy[connection] = None
        connection.transport.write(request)

    # ---- what became of them

    def answered(self, connection: _Connection, status: int, body: bytes) -> None:
        """The request under way on a connection has its answer; another one may be sent on it."""
        ended, now_s = connection.ended, self._loop.time()
        assert ended is not None, "a request is under way"
        ended.latency_s = now_s - self._began_s - ended.at_s
        if status == 200:
            is_met = ended.latency_s <= self._prepared[ended.model].slo_s
            ended.outcome = ("met" if is_met else "late") if b'"id":"%09d"' % connection.number in body else "wrong"
        elif status == 503:
            ended.outcome = "failed" if b"died" in body else "rejected"
        else:
            ended.outcome = _BY_STATUS.get(status, "refused")
        connection.is_busy, connection.since_s = False, now_s
        del self._busy[connection]
        if not connection.is_doubled:
            self._free.append(connection)
        self._ended()

    def lost(self, connection: _Connection) -> None:
        """A connection is gone with a request under way."""
        connection.is_busy = False
        del self._busy[connection]
        self._ended()

    def _end_late(self) -> None:
        late_s = self._loop.time() - ANSWER_LIMIT_S
        for connection in list(self._busy):
            if connection.since_s > late_s:
                break
            if connection.transport is not None:
                connection.transport.abort()
        self._limit = self._loop.call_later(_LOOK_EVERY_S, self._end_late)

    def _ended(self) -> None:
        self._open -= 1
        self._look_over()

    def _look_over(self) -> None:
        if not self._open and self._next == len(self._times) and not self._over.done():
            self._over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)


def _prepared(target: Target, tail: bytes) -> _Prepared:
    one = {
        "name": target.input, "shape": [1, *target.shape], "datatype": "FP32",
        "parameters": {"binary_data_size": len(tail)},
    }  # fmt: skip
    number = b"%09d" % 0
    head = msgspec.json.encode({"id": number.decode(), "inputs": [one], "parameters": {"binary_data_output": True}})
    before, _, after = head.partition(number)
    told = (
        b"POST /v2/models/", target.model.encode(), b"/infer HTTP/1.1\r\nHost: f\r\nContent-Length: ",
        str(len(head) + len(tail)).encode(), b"\r\nInference-Header-Content-Length: ", str(len(head)).encode(),
        b"\r\n\r\n", before,
    )  # fmt: skip
    return _Prepared(target.slo_ms / 1000, b"".join(told), after + tail)
