"""What a model takes on a part of a device, alone or beside another one: batches back to back, for a second."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from farside.agent.serving.executor import BatchDone, Executor, ExecutorEnded, ServeError, start_executor
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Place

WARM_RUNS_MIN, WARM_RUNS_MAX = 2, 20
WARM_S = 0.5
WARM_ALIKE = 5  # batches
WARM_SPREAD = 0.03
RUNS_MIN, RUNS = 3, 50
MEASURE_S = 1.0
STUCK_S = 120.0


class Sample(NamedTuple):
    """How long each batch took, in order, and how much of the whole device it used, where that is counted."""

    took_s: tuple[float, ...]
    used_share: float | None
    measured_s: float


class BusyExecutor:
    """An executor that a profiler keeps busy: it always has one batch that runs and one that is staged."""

    executor: Executor

    def __init__(self) -> None:
        self._model, self._batch = "", 0
        self._number = 0
        self._is_busy = False
        self._came = asyncio.Event()
        self._problem = ""
        self.done: list[BatchDone] = []

    async def start(self, place: Place, models: Sequence[ModelFile], seed: int) -> None:
        """Loads models; their inputs are random numbers, since zeros may be quicker than real ones.

        Raises:
            ServeError: It did not become ready.
        """
        limits_s = {model.name: STUCK_S for model in models}
        self.executor = await start_executor(
            place, models, self._on_done, self._on_exit, p99_s=limits_s, prepare_s=STUCK_S
        )
        rng = np.random.default_rng(seed)
        for model in models:
            for slot in range(2):
                for view in self.executor.slot_inputs(model.name, slot).values():
                    view[:] = (
                        rng.integers(0, 2, view.shape)
                        if np.issubdtype(view.dtype, np.integer) or view.dtype == bool
                        else rng.random(view.shape)
                    )

    def begin(self, model: str, batch: int) -> None:
        """Keeps it busy with batches of this size, until `rest`."""
        self._model, self._batch, self._is_busy = model, batch, True
        self.done.clear()
        for slot in range(2):
            self._run(slot)

    async def rest(self) -> None:
        """Lets what runs and is staged end."""
        self._is_busy = False
        while self.executor.in_flight:
            await self.came()

    async def came(self) -> None:
        """Waits for the next batch to end.

        Raises:
            ServeError: The executor has ended, or the model raised.
        """
        if not self._problem:
            self._came.clear()
            await self._came.wait()
        if self._problem:
            raise ServeError(self._problem)

    def _run(self, slot: int) -> None:
        self._number += 1
        self.executor.run(self._number, self._model, self._batch, slot)

    def _on_done(self, done: BatchDone) -> None:
        self.done.append(done)
        if done.problem:
            self._problem = f"{done.model} raised on a batch of {done.rows}: {done.problem}"
        elif self._is_busy and self.executor.can_take:  # it may be closing
            self._run(done.slot)
        self._came.set()

    def _on_exit(self, ended: ExecutorEnded) -> None:
        self._problem = self._problem or f"an executor ended while it was measured: {ended.line}"
        self._came.set()

    @property
    def is_warm(self) -> bool:
        """Whether the last batches took equally long, or enough ran or time has passed without that."""
        took_s = [(one.ended_ns - one.started_ns) / 1e9 for one in self.done]
        last = took_s[-WARM_ALIKE:]
        if len(last) == WARM_ALIKE and max(last) <= min(last) * (1 + WARM_SPREAD):
            return True
        return len(took_s) >= WARM_RUNS_MAX or (len(took_s) >= WARM_RUNS_MIN and sum(took_s) >= WARM_S)


async def measure(
    busy: Sequence[tuple[BusyExecutor, str, int]],
    *,
    runs: int = RUNS,
    seconds: float = MEASURE_S,
) -> tuple[Sample, ...]:
    """Runs each executor's model in batches of a size, all at the same time; a sample of each.

    After a warm-up it lasts until each has done ``runs`` batches, or ``seconds`` have passed and each has done three.

    Raises:
        ServeError: An executor has ended, or a model raised.
    """
    for executor, model, batch in busy:
        executor.begin(model, batch)
    for executor, _, _ in busy:
        while not executor.is_warm:
            await executor.came()
    before = [_used_s(executor) for executor, _, _ in busy]
    began_ns = time.monotonic_ns()
    sizes = [len(executor.done) for executor, _, _ in busy]
    while not _enough(busy, sizes, began_ns, runs, seconds):
        for (executor, _, _), size in zip(busy, sizes, strict=True):
            if len(executor.done) - size < runs:
                await executor.came()
                break
    ended_ns = time.monotonic_ns()
    measured_s = (ended_ns - began_ns) / 1e9
    found = []
    for (executor, _, _), start_s, size in zip(busy, before, sizes, strict=True):
        used_s = _used_s(executor)
        took_s = tuple((one.ended_ns - one.started_ns) / 1e9 for one in executor.done[size:])
        share = (used_s - start_s) / measured_s if used_s is not None and start_s is not None else None
        found.append(Sample(took_s, share, measured_s))
    for executor, _, _ in busy:
        await executor.rest()
    return tuple(found)


def _enough(
    busy: Sequence[tuple[BusyExecutor, str, int]], sizes: Sequence[int], began_ns: int, runs: int, seconds: float
) -> bool:
    counts = [len(executor.done) - size for (executor, _, _), size in zip(busy, sizes, strict=True)]
    return min(counts) >= runs or (min(counts) >= RUNS_MIN and time.monotonic_ns() - began_ns >= seconds * 1e9)


def _used_s(executor: BusyExecutor) -> float | None:
    measured = executor.executor.measured()
    return measured.device_s if measured is not None else None


def quantiles_ms(took_s: Sequence[float]) -> Mapping[str, float]:
    """p50, p95 and p99 of what batches took, in milliseconds; each is a time that was measured."""
    values = np.quantile(np.asarray(took_s) * 1000, (0.5, 0.95, 0.99), method="higher")
    return dict(zip(("p50", "p95", "p99"), map(float, values), strict=True))
