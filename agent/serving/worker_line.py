"""A front's connection to a worker without an executor: whether the worker is there, and has one of its keys."""

import asyncio

from farside.agent.serving.remote import Address, connect


class WorkerLine:
    """Made by `connect_worker`. Its worker knows by it that the front is there."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.is_up = True
        self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Hangs up."""
        self.is_up = False
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
    """A line to a worker that has one of the keys.

    Raises:
        NoCommonKey: It has hung up on each of them.
        ServeError: It can't be reached, or does not answer.
    """
    reader, writer, _ = await connect(address)
    return WorkerLine(reader, writer)
