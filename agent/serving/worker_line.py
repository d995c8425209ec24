"""A front's connection to a worker without an executor: whether the worker is there, and has the key."""

import asyncio
import os

from farside import proof
from farside.agent.lost_peer import notice_lost_peer
from farside.agent.serving.handle import ServeError
from farside.agent.serving.remote import DIAL_S, Address, dial
from farside.agent.serving.wire import Proven, Wire
from farside.errors import FarsideError


class WorkerLine:
    """Made by `connect_worker`. Its worker knows by it that the front is there."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> None:
        self._reader, self._writer = reader, writer
        self._wire = Wire(proof.Side.FRONT, key, os.urandom(32))
        self._watching: asyncio.Task[None] | None = None
        self.is_up = False

    async def prove(self) -> None:
        """Both ends show that they have the key.

        Raises:
            FarsideError: The worker does not have it, or is gone.
        """
        while True:
            self._writer.write(self._wire.data_to_send())
            data = await self._reader.read(self._wire.needed)
            if not data:
                raise ServeError("the worker has hung up")
            if any(isinstance(event, Proven) for event in self._wire.receive(data)):
                break
        self._writer.write(self._wire.data_to_send())
        notice_lost_peer(self._writer.get_extra_info("socket"))
        self.is_up = True
        self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Hangs up."""
        self.is_up = False
        if self._watching is not None:
            self._watching.cancel()
        self._writer.transport.abort()

    async def _watch(self) -> None:
        try:
            await self._reader.read(1)  # a worker says nothing here
        except OSError:
            pass
        self.is_up = False
        self._writer.transport.abort()


async def connect_worker(address: Address) -> WorkerLine:
    """A line to a worker that has the key.

    Raises:
        FarsideError: It can't be reached, or does not have it.
    """
    reader, writer = await dial(address)
    line = WorkerLine(reader, writer, address.key)
    try:
        async with asyncio.timeout(DIAL_S):
            await line.prove()
    except BaseException as error:
        line.close()
        if isinstance(error, OSError | TimeoutError | FarsideError):
            raise ServeError(f"worker {address.host}:{address.port}: {error or 'no answer'}") from error
        raise
    return line
