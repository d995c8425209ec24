"""The data connections to one donor: one for each worker, opened together under one epoch, then the engine's."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Protocol, TypeVar

from farside.blockdev.engine_port import Engine
from farside.errors import EngineError
from farside.kmod_shim.engine.binding import RdmaLink


async def all_but_one(events: Iterable[asyncio.Event], *, limit_s: float, last_s: float) -> bool:
    """Waits for all events; False where some have not come.

    Up to ``limit_s`` while two or more are missing, and no longer than ``last_s`` in all for the last one.
    """
    begin_s = asyncio.get_running_loop().time()
    waiting = {asyncio.ensure_future(event.wait()) for event in events}
    try:
        while waiting:
            left_s = (limit_s if len(waiting) > 1 else last_s) - (asyncio.get_running_loop().time() - begin_s)
            done, waiting = await asyncio.wait(waiting, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return False
        return True
    finally:
        for future in waiting:
            future.cancel()


class Closable(Protocol):
    """A connection that may be given up."""

    def close(self) -> None:
        """Ends it."""
        ...


ClosableT = TypeVar("ClosableT", bound=Closable)


async def open_all(
    workers: Sequence[int], open_one: Callable[[int], Coroutine[object, object, ClosableT]]
) -> list[ClosableT]:
    """A connection for each worker, in their order; when one can't be had none is kept. Raises as ``open_one``."""
    opening = [asyncio.ensure_future(open_one(worker)) for worker in workers]
    try:
        return await asyncio.gather(*opening)
    except BaseException:
        for future in opening:
            future.cancel()
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if not isinstance(result, BaseException):
                result.close()
        raise


async def make_pair(connect: Callable[[int, int], RdmaLink], sock: socket.socket, *, limit_s: float) -> RdmaLink:
    """A queue pair beside the connection, which becomes the link's, or is closed. Raises EngineError.

    It is made in a thread, because the fabric's answers are waited for there. Who is cancelled meanwhile leaves both to
    that thread.
    """

    def make() -> RdmaLink:
        try:
            link = connect(sock.fileno(), int(limit_s * 1000))
        except BaseException:
            sock.close()
            raise
        sock.detach()
        return link

    making = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_made)
        raise


def _close_made(making: "asyncio.Future[RdmaLink]") -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()


def attach_all(engine: Engine, donor: int, workers: Sequence[int], socks: Sequence[socket.socket]) -> None:
    """Gives the engine the connections; it closes those they replace. Raises EngineError, with the rest closed."""
    left = [sock.detach() for sock in socks]
    try:
        for worker in workers:
            engine.link_attach_tcp(donor, worker, left[0])
            del left[0]
    except EngineError:
        for fd in left:
            os.close(fd)
        raise


def attach_pairs(engine: Engine, donor: int, workers: Sequence[int], links: Sequence[RdmaLink]) -> None:
    """The same with queue pairs."""
    try:
        for worker, link in zip(workers, links, strict=True):
            engine.link_attach_rdma(donor, worker, link)
    except EngineError:
        for link in links:
            link.close()
        raise
