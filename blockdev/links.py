"""The data connections to one donor: one for each worker, opened together under one epoch, then the engine's."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence

from farside.blockdev.engine_port import Engine
from farside.errors import EngineError


async def open_all(
    workers: Sequence[int], open_one: Callable[[int], Coroutine[object, object, socket.socket]]
) -> list[socket.socket]:
    """A connection for each worker, in their order; when one can't be had none is kept. Raises as ``open_one``."""
    opening = [asyncio.ensure_future(open_one(worker)) for worker in workers]
    try:
        return await asyncio.gather(*opening)
    except BaseException:
        for future in opening:
            future.cancel()
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(result, socket.socket):
                result.close()
        raise


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
