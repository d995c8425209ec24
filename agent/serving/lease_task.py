"""The task of a lease: a worker for the front of its deployment, until its job ends or no front needs it."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from farside.agent.serving.partition.policy import Driver
from farside.agent.serving.worker import Worker
from farside.ending import on_end_signals
from farside.log import get_log

# A front that is started again is back within seconds. One that is not leaves GPUs that nobody uses.
ALONE_S = 300.0
_LOOK_S = 0.2

_log = get_log("agent.serving")


async def run_lease(
    listener: socket.socket, keys: Callable[[], Sequence[bytes]], drivers: Mapping[str, Driver],
    *, alone_s: float = ALONE_S,
) -> None:  # fmt: skip
    """Serves fronts that have one of the keys, until SIGTERM, or until none was connected for ``alone_s`` seconds.

    After SIGTERM it takes no new connection and waits until the front has ended the executors here: the front sees that
    the job stops, and serves elsewhere. The job's grace is the limit of that.
    """
    worker, ended = Worker(keys, drivers, gpus=os.environ.get("CUDA_VISIBLE_DEVICES")), asyncio.Event()
    loop = asyncio.get_running_loop()
    with on_end_signals(ended.set):
        server = await asyncio.start_server(worker.connected, sock=listener)
        _say_ready()
        seen_s = loop.time()
        try:
            while not ended.is_set():
                if worker.has_front:
                    seen_s = loop.time()
                elif loop.time() - seen_s >= alone_s:
                    _log.warning("no front has been here for long; the GPU is given back", seconds=alone_s)
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await ended.wait()
        finally:
            server.close()
            await worker.end_kept()
        while worker.executors:
            await asyncio.sleep(_LOOK_S)


def _say_ready() -> None:
    """Reports to the agent, where there is one, that the job has started."""
    path = os.environ.get("FARSIDE_READY")
    if path:
        with suppress(OSError):
            Path(path).write_text("ready\n")
