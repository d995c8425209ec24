"""TCP carrier: one authenticated connection for each worker, which only the engine uses afterwards."""

import os
from collections.abc import Callable

from farside.blockdev.carrier.carrier import Target, open_all
from farside.blockdev.engine_port import Engine
from farside.daemon.control import messages as m
from farside.errors import EngineError


class Tcp:
    """Requests and answers on a stream; also over a unix socket, where the setting asks for TCP."""

    name = "tcp"
    feature = m.Feature.NONE
    has_connections = True
    lacks_here = ""

    def limit_s(self, target: Target) -> float:
        """As long as any answer."""
        return target.deadline_s

    async def open(self, engine: Engine, target: Target) -> Callable[[], None]:
        """Connections for all workers. The engine closes those that they replace."""
        made = await open_all(target.workers, lambda worker: target.open_data(worker, self.feature))

        def attach() -> None:
            # A descriptor is the engine's once the call has succeeded; those in `left` are still ours to close.
            left = [each.sock.detach() for each in made]
            try:
                for worker, each in zip(target.workers, made, strict=True):
                    engine.link_attach_tcp(target.donor, worker, left[0], each.head_keys)
                    del left[0]
            except EngineError:
                for fd in left:
                    os.close(fd)
                raise

        return attach

    async def probe(self, target: Target, worker: int) -> None:
        """Opens one connection and closes it."""
        (await target.open_data(worker, self.feature)).close()
