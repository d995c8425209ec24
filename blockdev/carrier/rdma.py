"""RDMA carrier: a queue pair for each worker, and a connection beside it whose end is the fence. [infiniswap §2.5.1]"""

import asyncio
import socket
from collections.abc import Callable

from farside.blockdev.carrier.carrier import Target, open_all
from farside.blockdev.engine_port import Engine
from farside.daemon.control import messages as m
from farside.errors import EngineError
from farside.kmod_shim.engine.binding import RdmaLink, rdma_devices


class Rdma:
    """Queue pairs. ``connect`` makes one on a socket, within milliseconds."""

    name = "rdma"
    feature = m.Feature.RDMA
    has_connections = True

    def __init__(self, *, has_device: bool | None = None, connect: Callable[[int, int], RdmaLink] = RdmaLink) -> None:
        has_device = rdma_devices() > 0 if has_device is None else has_device
        self.lacks_here = "" if has_device else "no RDMA device here, or an engine built without rdma-core"
        self._connect = connect

    def limit_s(self, target: Target) -> float:
        """Three round trips of the fabric's own, which repeats one after seconds when it is lost."""
        return target.long_s

    async def open(self, engine: Engine, target: Target) -> Callable[[], None]:
        """Queue pairs for all workers."""
        links = await open_all(target.workers, lambda worker: self._open_one(target, worker))

        def attach() -> None:
            try:
                for worker, link in zip(target.workers, links, strict=True):
                    engine.link_attach_rdma(target.donor, worker, link)
            except EngineError:
                # close() does nothing to links that the engine has taken.
                for link in links:
                    link.close()
                raise

        return attach

    async def probe(self, target: Target, worker: int) -> None:
        """Makes one queue pair and destroys it. The connections that pages go by stay as they are."""
        (await self._open_one(target, worker)).close()

    async def _open_one(self, target: Target, worker: int) -> RdmaLink:
        data = await target.open_data(worker, self.feature)
        return await self._make_pair(data.sock, limit_s=self.limit_s(target))

    async def _make_pair(self, sock: socket.socket, *, limit_s: float) -> RdmaLink:
        # Made in a thread, because ne_rdma_connect blocks until the fabric has answered. A thread can't be cancelled: a
        # caller that gives up leaves both the connection and the pair to it.
        def make() -> RdmaLink:
            try:
                link = self._connect(sock.fileno(), int(limit_s * 1000))
            except BaseException:
                sock.close()
                raise
            sock.detach()  # it is the link's now
            return link

        making = asyncio.get_running_loop().run_in_executor(None, make)
        try:
            # Without the shield a cancellation would drop the future, and with it the pair that comes too late.
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_made)
            raise


def _close_made(making: "asyncio.Future[RdmaLink]") -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()
