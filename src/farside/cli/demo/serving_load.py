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
    """One HTTP connection with at most one request under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.free_since_s = 0.0
        self._buffer = b""
        self.extra = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Is ready."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, request: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        """Sends a request; its status and body come."""
        assert self.transport is not None
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def data_received(self, data: bytes) -> None:
        """Takes answers apart."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            if self.answer is None or self.answer.done():
                self.extra += 1
            else:
                self.answer.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        self.transport = None
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionResetError("the server hung up"))


class OpenLoop:
    """The client.

    Args:
        host: Of the HTTP door.
        port: Of it.
        targets: By model.
    """

    def __init__(self, host: str, port: int, targets: Mapping[str, Target]) -> None:
        self._host, self._port, self._targets = host, port, targets
        self._free: list[_Connection] = []
        rng = np.random.default_rng(1)
        self._tails = {name: rng.random(one.shape, dtype=np.float32).tobytes() for name, one in targets.items()}

    async def run(self, times: Sequence[tuple[float, str]]) -> Result:
        """Sends requests at seconds from now; returns when each has ended. This thread goes first meanwhile."""
        before = os.getpriority(os.PRIO_PROCESS, 0)
        go_first(CLIENT_NICE)
        try:
            return await self._run(times)
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, before)

    async def _run(self, times: Sequence[tuple[float, str]]) -> Result:
        loop = asyncio.get_running_loop()
        result, began_s = Result(), loop.time() + 0.05
        async with asyncio.TaskGroup() as group:
            for number, (at_s, model) in enumerate(times):
                if (left_s := began_s + at_s - loop.time()) > 0:
                    await asyncio.sleep(left_s)
                else:
                    result.behind_s = max(result.behind_s, -left_s)
                ended = Ended(model, at_s)
                result.ended.append(ended)
                group.create_task(self._send(number, ended, began_s + at_s))
        for connection in self._free:
            if connection.transport is not None:
                connection.transport.close()
        self._free.clear()
        return result

    async def _send(self, number: int, ended: Ended, intended_s: float) -> None:
        loop = asyncio.get_running_loop()
        target = self._targets[ended.model]
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                connection = await self._connection()
                status, body = await connection.ask(self._request(number, target))
        except (OSError, TimeoutError):
            return
        ended.latency_s = loop.time() - intended_s
        if status == 200:
            is_met = ended.latency_s <= target.slo_ms / 1000
            ended.outcome = ("met" if is_met else "late") if b'"id":"%d"' % number in body else "wrong"
        elif status == 503:
            ended.outcome = "failed" if b"died" in body else "rejected"
        else:
            ended.outcome = _BY_STATUS.get(status, "refused")
        if connection.extra:
            ended.outcome = "doubled"
        elif connection.transport is not None:
            connection.free_since_s = loop.time()
            self._free.append(connection)

    async def _connection(self) -> _Connection:
        kept_s = asyncio.get_running_loop().time() - KEPT_S
        while self._free:
            connection = self._free.pop()
            if connection.transport is not None and connection.free_since_s >= kept_s:
                return connection
            if connection.transport is not None:
                connection.transport.close()
        _, made = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return made

    def _request(self, number: int, target: Target) -> bytes:
        tail = self._tails[target.model]
        one = {
            "name": target.input, "shape": [1, *target.shape], "datatype": "FP32",
            "parameters": {"binary_data_size": len(tail)},
        }  # fmt: skip
        head = msgspec.json.encode({"id": str(number), "inputs": [one], "parameters": {"binary_data_output": True}})
        return b"".join(
            (
                b"POST /v2/models/", target.model.encode(), b"/infer HTTP/1.1\r\nHost: f\r\nContent-Length: ",
                str(len(head) + len(tail)).encode(), b"\r\nInference-Header-Content-Length: ", str(len(head)).encode(),
                b"\r\n\r\n", head, tail,
            )
        )  # fmt: skip
