"""A worker: starts executors on this host's device for fronts elsewhere, and carries their batches.

A front that has proven a key of the deployment may have an executor a connection. The front says when that is to end;
one whose connection is lost is kept for the front that comes back (kept.py).
Strangers keep no front out: of STRANGERS_MAX that have proven nothing, the oldest of the address that has most makes
room for another one.
In a cluster a worker is the task of a lease, which is a job with one GPU (agent/serving/lease_task.py).
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from farside import proof
from farside.agent.lost_peer import notice_lost_peer
from farside.agent.serving.executor import start_executor
from farside.agent.serving.handle import BatchDone, ExecutorEnded, ExecutorHandle
from farside.agent.serving.kept import KEPT_S, KeptExecutors
from farside.agent.serving.model import runtimes
from farside.agent.serving.partition.catalog import ON_GPU
from farside.agent.serving.partition.nvidia import gpu_named
from farside.agent.serving.partition.policy import Driver
from farside.agent.serving.wire import Frame, Kind, Open, Proven, Wire, opened, resized, split_rows
from farside.errors import ConfigError, FarsideError, Unavailable
from farside.log import get_log

CONNECTIONS_MAX = 64  # that have proven the key
STRANGERS_MAX = 64  # that have not
PROOF_S = 10.0
READ_BYTES_MAX = 1 << 20
_LINE_BYTES = 800

_log = get_log("agent.serving")


class Worker:
    """What a connection needs.

    Args:
        keys: The deployment's, as its file has them now: a front may have any of them.
        drivers: This host's, by name.
        gpus: The GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them; None: all of this host.
        kept_s: See kept.py.
    """

    def __init__(
        self, keys: Callable[[], Sequence[bytes]], drivers: Mapping[str, Driver],
        *, gpus: str | None = None, kept_s: float = KEPT_S,
    ) -> None:  # fmt: skip
        self._keys, self._drivers, self._gpus = keys, drivers, gpus
        self._sessions: set[_Session] = set()
        self._strangers = proof.Unproved(STRANGERS_MAX, STRANGERS_MAX)
        self._kept = KeptExecutors(lambda: self.has_front, kept_s=kept_s)

    @property
    def has_front(self) -> bool:
        """Whether a front that has the key is connected, with an executor or without."""
        return any(session.is_proven for session in self._sessions)

    @property
    def executors(self) -> int:
        """Executors that it has for fronts, or is starting; without those that are kept."""
        return sum(session.is_asked for session in self._sessions)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one front; for `asyncio.start_server`."""
        session = _Session(self._keys(), self._drivers, self._gpus, writer, self._let_in, self._kept)
        self._sessions.add(session)
        self._strangers.come(session.address, session, session.hang_up)
        is_lost = False
        try:
            await session.run(reader)
            is_lost = not session.is_told_to_end
        except FarsideError as error:
            _log.warning("a front was refused", peer=writer.get_extra_info("peername"), why=error)
        except (OSError, TimeoutError):  # it is gone, or never proved anything
            is_lost = not session.is_told_to_end
        finally:
            writer.close()
            self._strangers.leave(session.address, session)
            self._sessions.discard(session)
            if session.executor is not None and session.wanted is not None and is_lost:
                self._kept.keep(session.executor, session.wanted)
            elif session.executor is not None:
                await session.executor.close(0)

    async def end_kept(self) -> None:
        """Ends the executors that are kept, and keeps none any more."""
        await self._kept.end()

    def _let_in(self, session: "_Session") -> None:
        """A session has proven the key."""
        self._strangers.leave(session.address, session)
        proven = sum(session.is_proven for session in self._sessions)
        if proven > CONNECTIONS_MAX:
            raise Unavailable(f"this worker has {CONNECTIONS_MAX} connections of fronts already")
        if proven == 1:
            self._kept.front_came()


class _Session:
    """One connection and its executor."""

    def __init__(
        self,
        keys: Sequence[bytes],
        drivers: Mapping[str, Driver],
        gpus: str | None,
        writer: asyncio.StreamWriter,
        let_in: Callable[["_Session"], None],
        kept: KeptExecutors,
    ) -> None:
        self._drivers, self._gpus, self._writer, self._let_in, self._kept = drivers, gpus, writer, let_in, kept
        self.address = str((writer.get_extra_info("peername") or ("",))[0])
        self._wire = Wire(proof.Side.WORKER, keys, os.urandom(32))
        self.executor: ExecutorHandle | None = None
        self.wanted: Open | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._asked: dict[int, Frame] = {}
        self.is_asked = False
        self.is_told_to_end = False

    @property
    def is_proven(self) -> bool:
        """Whether its front has shown that it has the key."""
        return self._wire.is_proven

    def hang_up(self) -> None:
        """Ends its connection, and so its `run`."""
        self._writer.transport.abort()

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Until the connection ends; then nothing is loaded any more."""
        try:
            await self._read(reader)
        finally:
            if self._opening is not None:
                self._opening.cancel()
                await asyncio.wait([self._opening])
        if self._opening is not None and not self._opening.cancelled():
            self._opening.result()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        proof_by_s = asyncio.get_running_loop().time() + PROOF_S
        while True:
            async with asyncio.timeout_at(None if self._wire.is_proven else proof_by_s):
                data = await reader.read(min(self._wire.needed, READ_BYTES_MAX))
            if not data:
                return
            for event in self._wire.receive(data):
                if isinstance(event, Proven):
                    self._let_in(self)
                    notice_lost_peer(self._writer.get_extra_info("socket"))
                elif isinstance(event, Frame):
                    await self._take(event)
            self._flush()
            await self._writer.drain()

    async def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.OPEN:
                self.is_asked, self.wanted = True, opened(frame.body)
                self._opening = asyncio.ensure_future(self._open(self.wanted))
            case Kind.RUN if self.executor is not None and self.executor.can_take:
                model = self.executor.models[frame.model]
                inputs = self.executor.slot_inputs(model.name, frame.slot).values()
                for view, part in zip(inputs, split_rows(model.inputs, frame), strict=True):
                    view[: frame.rows] = np.frombuffer(part, view.dtype).reshape((frame.rows, *view.shape[1:]))
                self._asked[frame.batch] = frame
                self.executor.run(frame.batch, model.name, frame.rows, frame.slot)
            case Kind.RESIZE if self.executor is not None:
                is_done = await self.executor.resize(frame.rows, resized(frame.body))
                self._wire.send(Frame(Kind.RESIZED, rows=int(is_done)))
            case Kind.CLOSE if self.executor is not None:
                self.is_told_to_end = True
                self._closing = asyncio.ensure_future(self.executor.close())
            case Kind.CLOSE if self._opening is not None and self._opening.cancel():
                self.is_told_to_end = True
                self._wire.send(Frame(Kind.ENDED))
            case _:  # to an executor that has ended, as the front will hear
                pass

    async def _open(self, wanted: Open) -> None:
        """Says whether there is an executor now. Meanwhile the connection is read: its front may give it up."""
        try:
            self.executor = await self._kept.take(wanted)
            if self.executor is not None:
                self.executor.hand_over(self._done, self._ended)
                self.executor.expect(wanted.p99_s)
                _log.info("an executor that was kept serves again", pid=self.executor.pid)
            else:
                self.executor = await self._started(wanted)
            self._wire.send(Frame(Kind.OPENED, rows=self.executor.pid))
        except FarsideError as error:
            self._wire.send(Frame(Kind.FAILED, body=str(error).encode()[:_LINE_BYTES]))
        except Exception:
            self.hang_up()
            raise
        self._flush()

    async def _started(self, wanted: Open) -> ExecutorHandle:
        driver = self._drivers.get(wanted.driver)
        if driver is None:
            raise Unavailable(f"there is no device driver {wanted.driver} here")
        for model in wanted.models:
            await asyncio.to_thread(_check_file, model.path, model.sha256)
        for name, version in runtimes(model.framework for model in wanted.models).items():
            _check_version(name, version, wanted.runtimes.get(name, version))
        # A front knows the cores of nodes by its file, and a lease's GPU by nothing.
        device = gpu_named(self._gpus, "CUDA_VISIBLE_DEVICES") if wanted.driver in ON_GPU else wanted.device
        if wanted.device_name and (name := driver.identity(device).name) != wanted.device_name:
            raise ConfigError(f"the device here is {name}, and the profile is of {wanted.device_name}")
        place = driver.open(device, wanted.part_pct)
        return await start_executor(
            place, wanted.models, self._done, self._ended, p99_s=wanted.p99_s, prepare_s=wanted.prepare_s,
            prepare_pct=wanted.prepare_pct,
        )  # fmt: skip

    def _done(self, done: BatchDone) -> None:
        assert self.executor is not None
        asked = self._asked.pop(done.batch)._replace(started_ns=done.started_ns, ended_ns=done.ended_ns)
        if done.problem:
            frame = asked._replace(kind=Kind.RAISED, body=done.problem.encode()[:_LINE_BYTES])
        else:
            outputs = self.executor.slot_outputs(done.model, done.slot).values()
            frame = asked._replace(kind=Kind.DONE, body=b"".join(view[: done.rows].tobytes() for view in outputs))
        self._wire.send(frame)
        self._flush()

    def _ended(self, ended: ExecutorEnded) -> None:
        self._wire.send(Frame(Kind.ENDED, body=ended.line.encode()[:_LINE_BYTES]))
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._wire.data_to_send())


def _check_file(path: str, sha256: str) -> None:
    try:
        found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="put the model where the front has it") from error
    if found != sha256:
        raise ConfigError(f"{path}: is not the file that the front has", hint="copy the front's file here")


def _check_version(framework: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise ConfigError(
            f"{framework} here has version {found}, and the profile was measured with {wanted}",
            hint=f"install {wanted} here, or measure anew with {found}",
        )
