"""A front without processes: doors, pool and glets whose executors run in this loop. Faults come when asked for."""

import asyncio
import functools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from farside.agent.serving.life import RAISED_IN_A_ROW
from farside.agent.serving.model_file import NUMPY_NAMES, ModelFile, TensorSpec
from farside.scheduler.sharing.glet.plan import Glet, Portion
from farside.scheduler.sharing.glet.round import GletRound, Slot
from farside.serve.http_door import open_http
from farside.serve.inference import Array
from farside.serve.pool import Pool, Turns
from farside.serve.service import Service
from farside.tls import TlsFiles
from tests.support.ports import free_port


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


def model_file(
    name: str = "twice", *, max_batch: int = 8, shape: tuple[int, ...] = (3,), datatype: str = "FP32"
) -> ModelFile:
    """A model that answers twice its input."""
    return ModelFile(
        name=name, path=f"/models/{name}/1/model.onnx", framework="onnxruntime",
        inputs=(TensorSpec("input", datatype, shape),), outputs=(TensorSpec("output", datatype, shape),),
        max_batch=max_batch,
    )  # fmt: skip


@dataclass(eq=False)
class LocalExecutor:
    """Has the interface of an executor; a batch takes ``latency_s``, and answers twice its input.

    ``is_hung``: nothing ends. ``raises``: the line with which the models fail, where ``poison`` is set only on batches
    with such a value.
    """

    models: Sequence[ModelFile]
    latency_s: float
    ended: Callable[[int, str, int, int], None] = lambda *_: None
    is_hung: bool = False
    raises: str = ""
    poison: float | None = None
    ran: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._flight = deque[tuple[int, str, int, int, bool]]()
        self._runs = False
        self._raised = Counter[str]()
        self._slots = {
            (model.name, slot): tuple(
                {one.name: np.zeros((model.max_batch, *one.shape), NUMPY_NAMES[one.datatype]) for one in tensors}
                for tensors in (model.inputs, model.outputs)
            )
            for model in self.models
            for slot in (0, 1)
        }

    @property
    def failing(self) -> frozenset[str]:
        return frozenset(model for model, count in self._raised.items() if count >= RAISED_IN_A_ROW)

    def slot_inputs(self, model: str, slot: int) -> Mapping[str, Array]:
        return self._slots[model, slot][0]

    def slot_outputs(self, model: str, slot: int) -> Mapping[str, Array]:
        return self._slots[model, slot][1]

    def run(self, batch: int, model: str, rows: int, slot: int, *, is_one: bool) -> None:
        assert len(self._flight) < 2, "one runs, one is staged"
        assert all((model, slot) != (one[1], one[3]) for one in self._flight), "the slot is in use"
        self._flight.append((batch, model, rows, slot, is_one))
        self._next()

    def answer(self) -> None:
        """Ends the batch that runs."""
        batch, model, rows, slot, is_one = self._flight.popleft()
        self._runs = False
        given, out = self._slots[model, slot]
        for view, result in zip(given.values(), out.values(), strict=True):
            result[:rows] = view[:rows] * 2
        self.ran.append((model, rows))
        is_poisoned = self.poison is None or any((view[:rows] == self.poison).any() for view in given.values())
        raised = self.raises if is_poisoned else ""
        self._raised[model] = self._raised[model] + is_one if raised else 0
        now_ns = int(self._loop.time() * 1e9)
        self.ended(batch, raised, now_ns - int(self.latency_s * 1e9), now_ns)
        self._next()

    def _next(self) -> None:
        if self._flight and not self._runs and not self.is_hung:
            self._runs = True
            self._loop.call_later(self.latency_s, self._answer_if_alive)

    def _answer_if_alive(self) -> None:
        if self._flight and not self.is_hung:
            self.answer()


def glet_turns(
    pool: Pool, models: Sequence[ModelFile], *, latency_s: float = 0.001, cycle_s: float = 0.05, batch: int = 4,
    gpu: int = 0,
) -> tuple[Turns, LocalExecutor]:  # fmt: skip
    """A glet with these models on an executor of this process."""
    executor = LocalExecutor(models, latency_s)
    turns = Turns(
        glet=Glet(
            gpu=gpu, part_pct=100, cycle_ms=1000 * cycle_s,
            models=tuple(Portion(model=one.name, batch=batch, rate=100.0) for one in models),
        ),
        round=GletRound(
            slots=[Slot(one.name, batch, [latency_s] * one.max_batch) for one in models], cycle_s=cycle_s
        ),
        executor=executor,
    )  # fmt: skip
    executor.ended = lambda *told: pool.ended(turns, *told)
    return turns, executor


def pool_of(models: Sequence[ModelFile], slo_s: float = 60.0) -> Pool:
    """A pool of models that all have one SLO."""
    named = {one.name: one for one in models}
    return Pool(asyncio.get_running_loop(), named, dict.fromkeys(named, slo_s), lambda: 1)


def close_gate(pool: Pool, model: str) -> None:
    """As where requests were given up for a while and others came beyond what was served: none is let in for now."""
    gate, now_s = pool.queues[model].gate, asyncio.get_running_loop().time()
    gate.plan(0.0)
    for back in range(50, -1, -1):
        gate.gave_up(now_s - back * gate.slo_s)
    assert gate.rate < 1000
    gate.is_open(now_s)
    gate.enter(1000)


@asynccontextmanager
async def http_front(
    models: Sequence[ModelFile], port: int, *, tokens: Sequence[str] = (), slo_s: float = 60.0,
    latency_s: float = 0.001, secure: TlsFiles | None = None, grace_s: float = 0,
) -> AsyncIterator[tuple[Pool, LocalExecutor]]:  # fmt: skip
    """An HTTP door on a loopback port, with one glet."""
    pool = pool_of(models, slo_s)
    turns, executor = glet_turns(pool, models, latency_s=latency_s)
    pool.switch([turns], {})
    service = Service(
        "1.0", {one.name: one for one in models}, dict.fromkeys((m.name for m in models), slo_s), pool, tokens
    )
    server = open_http(service, f"127.0.0.1:{port}", secure)
    await server.start()
    try:
        yield pool, executor
    finally:
        await server.stop(grace_s)
        service.large.close()


@asynccontextmanager
async def grpc_front(
    models: Sequence[ModelFile], tokens: tuple[str, ...] = (), *, secure: TlsFiles | None = None, grace_s: float = 0
) -> AsyncIterator[tuple[str, Pool, LocalExecutor]]:
    """A gRPC door on a loopback port, with one glet."""
    pytest.importorskip("hpack", reason="needs hpack (requirements/serving.txt)")
    pytest.importorskip("grpc", reason="needs grpcio (requirements/serving.txt)")
    pytest.importorskip("tritonclient.grpc", reason="needs tritonclient (requirements/serving.txt)")
    from farside.serve.grpc_door import open_grpc

    pool = pool_of(models, 60.0)
    turns, executor = glet_turns(pool, models)
    pool.switch([turns], {})
    named = {one.name: one for one in models}
    address = f"127.0.0.1:{free_port()}"
    service = Service("1.0", named, dict.fromkeys(named, 60.0), pool, tokens)
    server = open_grpc(service, address, secure)
    await server.start()
    try:
        yield address, pool, executor
    finally:
        await server.stop(grace_s)
        service.large.close()
