"""Protocol that every carrier follows: how connections to a donor are made and given to the engine.

How it works. ``open`` makes a connection for each worker, all of one epoch, and returns the call that gives them to the
engine. Between the two the caller handles the engine's events of the connections that are replaced: the donor's fence
has ended those, and a late event of them must not count against the new ones.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from farside.blockdev.engine_port import Engine
from farside.daemon.control import messages as m


@dataclass(frozen=True, slots=True)
class DataConnection:
    """An authenticated data connection: a blocking socket at its first head, and the keys of the heads' codes."""

    sock: socket.socket
    head_keys: bytes

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Donor and workers that want connections, and how long opening them may take.

    Attributes:
        donor: The donor's number in the engine.
        workers: Who gets a connection each, the mover included.
        open_data: Opens one authenticated data connection, for a worker, with features.
        deadline_s: How long a donor may owe an answer.
        long_s: How long it may take over what takes long.
    """

    donor: int
    workers: Sequence[int]
    open_data: Callable[[int, m.Feature], Coroutine[object, object, DataConnection]]
    deadline_s: float
    long_s: float


class Carrier(Protocol):
    """Way of pages to a donor. Every failure is a PeerError, EngineError, RemoteProtocolError or OSError.

    Attributes:
        name: Name of the carrier in the setting ``transport``.
        feature: Feature that both ends must agree on in HELLO; NONE where no agreement is needed.
        has_connections: True for a carrier with connections, which are made under an epoch of their own.
        lacks_here: What this machine lacks for the carrier, in words; empty when nothing.
    """

    name: str
    feature: m.Feature
    has_connections: bool
    lacks_here: str

    def limit_s(self, target: Target) -> float:
        """How long opening may take; the caller bounds it."""
        ...

    async def open(self, engine: Engine, target: Target) -> Callable[[], None]:
        """A connection for each worker; the call that is returned gives them to the engine."""
        ...

    async def probe(self, target: Target, worker: int) -> None:
        """Opens one connection and closes it, to see whether it can be had."""


class Closable(Protocol):
    """A connection that can be closed."""

    def close(self) -> None:
        """Close the connection."""


ClosableT = TypeVar("ClosableT", bound=Closable)


async def open_all(
    workers: Sequence[int], open_one: Callable[[int], Coroutine[object, object, ClosableT]]
) -> list[ClosableT]:
    """A connection for each worker, in their order; when one can't be had none is kept. Raises as ``open_one``."""
    # All at once, as each takes several round trips, and clients may be waiting for this donor.
    opening = [asyncio.ensure_future(open_one(worker)) for worker in workers]
    try:
        return await asyncio.gather(*opening)
    except BaseException:
        for future in opening:
            future.cancel()
        # Waited for: one that was made in the moment of its cancellation has to be closed.
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if not isinstance(result, BaseException):
                result.close()
        raise
