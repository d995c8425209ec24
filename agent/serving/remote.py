"""An executor on another host, seen from the front: the same as a local one, over a connection to its worker."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from farside import proof
from farside.agent.lost_peer import notice_lost_peer
from farside.agent.serving import frames
from farside.agent.serving.arena import Array
from farside.agent.serving.handle import ExecutorHandle, OnDone, OnExit, ServeError
from farside.agent.serving.life import ENDED, PREPARE_S, Exited, Received
from farside.agent.serving.model_file import NUMPY_NAMES, ModelFile, TensorSpec
from farside.agent.serving.partition.policy import Device, Measured
from farside.agent.serving.wire import Frame, Kind, Open, Proven, Wire, split_rows
from farside.errors import FarsideError, PeerError

READ_BYTES_MAX = 1 << 20
DIAL_S = 10.0
RESIZE_S = 10.0  # in which a worker writes a quota


class NoCommonKey(ServeError):
    """A worker has hung up on each of its front's keys, as one does that has none of them or is of another version."""


class Address(NamedTuple):
    """Where a worker listens, and the deployment's keys, as its file has them now: the first is preferred."""

    host: str
    port: int
    current_keys: Callable[[], Sequence[bytes]]

    @property
    def name(self) -> str:
        """What messages call the worker."""
        return f"worker {self.host}:{self.port}"


class RemotePart(NamedTuple):
    """A part of a worker's device; ``device_name`` and ``runtimes`` as `Open` has them."""

    driver: str
    device: Device
    part_pct: int
    device_name: str = ""
    runtimes: Mapping[str, str] = MappingProxyType({})


async def start_remote_executor(
    address: Address,
    part: RemotePart,
    models: Sequence[ModelFile],
    on_done: OnDone,
    on_exit: OnExit,
    *,
    p99_s: Mapping[str, float] | None = None,
    prepare_s: float = PREPARE_S,
    prepare_pct: int = 100,
) -> "RemoteExecutor":
    """An executor at a worker, as `start_executor` makes one here; models have their paths there.

    Raises:
        NoCommonKey: The worker has hung up on each of the keys.
        ServeError: It can't be reached, or does not answer, or the executor did not become ready.
    """
    reader, writer, wire = await connect(address)
    wanted = Open(
        driver=part.driver, device=part.device, part_pct=part.part_pct, models=tuple(models), p99_s=dict(p99_s or {}),
        device_name=part.device_name, runtimes=dict(part.runtimes), prepare_pct=prepare_pct, prepare_s=prepare_s,
    )  # fmt: skip
    executor = RemoteExecutor(reader, writer, wire, address.name, wanted, on_done, on_exit)
    await executor.ready()
    return executor


async def connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Wire]:
    """A connection to a worker on which both ends have shown that they have a key: the first that the worker has, too.

    Raises:
        NoCommonKey: It has hung up on each of them.
        ServeError: It can't be reached, or does not answer.
    """
    for key in address.current_keys():
        try:
            return await _proven(address, key)
        except NoCommonKey:
            pass
    raise NoCommonKey(f"{address.name}: it has hung up on each key of this front's key file")


async def _proven(address: Address, key: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Wire]:
    reader, writer = await _dial(address)
    wire = Wire(proof.Side.FRONT, (key,), os.urandom(32))
    try:
        async with asyncio.timeout(DIAL_S):
            while not wire.is_proven:
                writer.write(wire.data_to_send())
                data = await reader.read(wire.needed)
                if not data:  # a worker without this key hangs up, of whichever version
                    raise NoCommonKey(f"{address.name}: it has hung up on the key")
                list(wire.receive(data))
        writer.write(wire.data_to_send())
        notice_lost_peer(writer.get_extra_info("socket"))
    except BaseException as error:
        writer.transport.abort()
        if isinstance(error, PeerError):
            raise NoCommonKey(f"{address.name}: {error}") from error
        if isinstance(error, OSError | TimeoutError):
            raise ServeError(f"{address.name}: {error or 'no answer'}") from error
        raise
    return reader, writer, wire


async def _dial(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(DIAL_S):
            return await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else f"no answer within {DIAL_S:g} s"
        raise ServeError(f"{address.name}: {why}") from error


class RemoteExecutor(ExecutorHandle):
    """Made by `start_remote_executor`.

    Its host has another clock: a batch counts as ended when its answer is here, and as begun so long before as it took.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wire: Wire,
        name: str,
        wanted: Open,
        on_done: OnDone,
        on_exit: OnExit,
    ) -> None:
        super().__init__(wanted.models, on_done, on_exit, p99_s=wanted.p99_s, prepare_s=wanted.prepare_s)
        self._reader, self._writer, self._wire = reader, writer, wire
        self._name, self._wanted = name, wanted
        self._slots = [
            [tuple(_views(tensors, model.max_batch) for tensors in (model.inputs, model.outputs)) for _ in range(2)]
            for model in wanted.models
        ]
        self._texts: dict[tuple[int, int], str] = {}
        self._part_pct = wanted.part_pct
        self._resized: asyncio.Future[bool] | None = None
        self._set_timer()
        self._reading = self._loop.create_task(self._read())

    def slot_inputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """Views of ``max_batch`` rows of each input; slots are 0 and 1."""
        return self._slots[self._numbers[model]][slot][0]

    def slot_outputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """Views of ``max_batch`` rows of each output: those of the slot's last batch, until the next one is run."""
        return self._slots[self._numbers[model]][slot][1]

    @property
    def part_pct(self) -> int:
        """The size of its part, as its worker has said last."""
        return self._part_pct

    async def resize(self, part_pct: int, p99_s: Mapping[str, float] | None = None) -> bool:
        """Another size of its part; False: it needs a new executor, and nothing has changed.

        One whose worker does not answer within RESIZE_S is ended: nobody knows its size.
        """
        if not self.is_ready or self._resized is not None:
            return False
        self._resized = self._loop.create_future()
        body = b"" if p99_s is None else msgspec.msgpack.encode(dict(p99_s))
        self._wire.send(Frame(Kind.RESIZE, rows=part_pct, body=body))
        self._flush()
        try:
            async with asyncio.timeout(RESIZE_S):
                is_done = await self._resized
        except TimeoutError:
            self._kill()
            self._step(Exited(f"{self._name}: a part was not resized within {RESIZE_S:g} s"))
            return False
        finally:
            self._resized = None
        if is_done:
            self._part_pct = part_pct
            if p99_s is not None:
                self.expect(p99_s)
        return is_done

    def measured(self) -> Measured | None:
        """Only its worker knows."""
        return None

    def _send(self, frame: frames.Frame) -> None:
        if frame.kind is frames.Kind.RUN:
            inputs = self._slots[frame.model][frame.slot][0]
            body = b"".join(view[: frame.rows].tobytes() for view in inputs.values())
            self._wire.send(Frame(Kind.RUN, frame.batch, frame.model, frame.rows, frame.slot, body))
        else:
            self._wire.send(Frame(Kind.CLOSE))
        self._flush()

    def _kill(self) -> None:
        """Tells its worker to end it, and waits for nothing: of a connection that is only lost it would be kept."""
        if not self._writer.is_closing():
            self._wire.send(Frame(Kind.CLOSE))
            self._flush()
        self._writer.transport.abort()

    def _text(self, model: int, slot: int) -> str:
        return self._texts.get((model, slot), "")

    def _flush(self) -> None:
        self._writer.write(self._wire.data_to_send())

    async def _read(self) -> None:
        """Opens it, and reads until the connection ends, which ends it unless its worker has said why before."""
        line = f"{self._name}: the connection was lost"
        try:
            self._wire.send(Frame(Kind.OPEN, body=msgspec.msgpack.encode(self._wanted)))
            self._flush()
            self._step(Received(frames.Frame(frames.Kind.HELLO)))
            while data := await self._reader.read(min(self._wire.needed, READ_BYTES_MAX)):
                for event in self._wire.receive(data):
                    assert not isinstance(event, Proven), "it was proven before"
                    self._take(event)
                self._flush()
                if self._life.state in ENDED:
                    break
        except FarsideError as error:
            line = f"{self._name}: {error}"
        except OSError:
            pass
        self._writer.transport.abort()
        self._step(Exited(line))
        if self._resized is not None and not self._resized.done():
            self._resized.set_result(False)
        if not self._ended.done():
            self._ended.set_result(None)

    def _take(self, event: Frame) -> None:
        match event.kind:
            case Kind.OPENED:
                self.pid = event.rows
                self._step(Received(frames.Frame(frames.Kind.READY)))
            case Kind.DONE | Kind.RAISED:
                self._finished(event)
            case Kind.RESIZED:
                if self._resized is not None and not self._resized.done():
                    self._resized.set_result(bool(event.rows))
            case _:
                self._step(Exited(f"{self._name}: {event.body.decode(errors='replace') or 'it has ended'}"))

    def _finished(self, event: Frame) -> None:
        status = frames.Status.OK
        if event.kind is Kind.DONE:
            outputs = self._slots[event.model][event.slot][1]
            for view, part in zip(outputs.values(), split_rows(self.models[event.model].outputs, event), strict=True):
                view[: event.rows] = np.frombuffer(part, view.dtype).reshape((event.rows, *view.shape[1:]))
        else:
            status = frames.Status.RAISED
            self._texts[event.model, event.slot] = event.body.decode(errors="replace")
        ended_ns = time.monotonic_ns()
        self._step(
            Received(
                frames.Frame(
                    frames.Kind.DONE, status, event.batch, event.model, event.rows, event.slot,
                    ended_ns - max(0, event.ended_ns - event.started_ns), ended_ns,
                )
            )
        )  # fmt: skip


def _views(tensors: Sequence[TensorSpec], rows: int) -> dict[str, Array]:
    return {one.name: np.zeros((rows, *one.shape), NUMPY_NAMES[one.datatype]) for one in tensors}
