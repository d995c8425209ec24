"""The profiler: measures models alone and beside each other on parts of a device."""

import os
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from farside.agent.serving.arena import slot_bytes
from farside.agent.serving.describe import ModelRequest, describe_models
from farside.agent.serving.frames import SLOTS
from farside.agent.serving.measure import BusyExecutor, Sample, measure, quantiles_ms
from farside.agent.serving.model import runtimes
from farside.agent.serving.model_file import FRAMEWORKS, ModelFile
from farside.agent.serving.partition.policy import Device, Driver
from farside.errors import ConfigError, FarsideError
from farside.serve.deployment import FILE, NAME, NAME_HINT, read_models
from farside.serve.profile.cells import WHOLE_PCT, Cell, Side, round_of
from farside.serve.profile.folder import (
    HEADER,
    RUNS,
    VERSION,
    Fingerprint,
    Header,
    ProfiledModel,
    Run,
    RunsFile,
    missing,
    profile_problem,
    read_header,
    rows_of,
    write_header,
    write_tables,
)
from farside.serve.table import PROCESS_MB
from farside.whole_file import lock_file

ROUNDS = 3
ROUNDS_MAX = 100
NOISE_MAX = 0.1  # a fixed loop may take so much longer than at best
TRIES = 3
_SPINS = 60_000  # of the fixed loop, some milliseconds
_EXECUTORS_MAX = 4  # that are open, of those that change their size
_IDLE_MEMORY_MAX = 0.5  # of the device's, that executors which only wait for their cells may use together
_SEED = 1
_MB = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTask:
    """What to measure: models by file, on parts of a device, for ``minutes``; None: three rounds.

    ``run_s`` is how long a cell is measured at least, unless it did 50 batches.
    """

    models: Sequence[ModelFile]
    driver_name: str
    driver: Driver
    device: Device
    parts: tuple[int, ...]
    slo_ms: Mapping[str, float]
    out: Path
    minutes: float | None
    run_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """Cells that were measured by this run, rows that there are in all, and needed cells that are still missing."""

    cells: int
    rows: int
    missing: int


def find_models(folder: Path, known: Collection[Path] = ()) -> Mapping[str, Path]:
    """Model files of a folder by name: NAME.onnx, NAME.pt, or Triton's NAME/1/model.onnx and NAME/1/model.pt.

    Args:
        folder: Where they are.
        known: Files that are not looked for, as they have names already.

    Raises:
        ConfigError: The folder is not there, has none, two of a name, or one whose name no deployment takes.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder", hint="name a folder with model files")
    found: dict[str, Path] = {}
    skipped = {path.resolve() for path in known}
    files = [*folder.iterdir(), *(place for suffix in FRAMEWORKS for place in folder.glob(f"*/1/model{suffix}"))]
    for path in sorted(files):
        if path.suffix in FRAMEWORKS and path.is_file() and path.resolve() not in skipped:
            name = path.stem if path.parent == folder else path.parent.parent.name
            if not NAME.fullmatch(name):
                file = os.fspath(path.relative_to(folder))
                raise ConfigError(f"{folder}: the file {file!r} gives a model no name to be served by", hint=NAME_HINT)
            if name in found:
                raise ConfigError(f"{path}: {found[name]} is a model of the same name", hint="rename one of them")
            found[name] = path
    if not found and not skipped:
        raise ConfigError(f"{folder}: has no model", hint=f"put files there that end with {' or '.join(FRAMEWORKS)}")
    return found


async def describe_folder(folder: Path, max_batch: int) -> tuple[ModelFile, ...]:
    """What all models of a folder take and give: those that its serving.toml names, with its settings, and others.

    Args:
        folder: Where model files are, and serving.toml if it is there.
        max_batch: The largest batch of models for which serving.toml has none.

    Raises:
        ConfigError: One of them can't be served, there is none, or serving.toml is wrong.
    """
    served = read_models(folder, max_batch)
    others = find_models(folder, [one.path for one in served.values()])
    for name in served.keys() & others.keys():
        line = f"{others[name]}: {FILE} has a model {name} of another file"
        raise ConfigError(line, hint="rename one of them, or name this file there, too")
    requests = [ModelRequest(name=name, path=str(path), max_batch=max_batch) for name, path in others.items()]
    requests += [one.request for one in served.values()]
    return await describe_models(sorted(requests, key=lambda one: one.name))


def fingerprint(driver_name: str, driver: Driver, device: Device, frameworks: Sequence[str]) -> Fingerprint:
    """What a profile of this device, measured now, is of."""
    identity = driver.identity(device)
    return Fingerprint(
        driver=driver_name,
        name=identity.name,
        cores=device.cores,
        capacity_pct=getattr(driver, "capacity_pct", WHOLE_PCT),
        memory_mb=identity.memory_mb,
        runtimes=runtimes(frameworks),
    )


async def profile(task: ProfileTask, say: Say) -> ProfileResult:
    """Measures, and makes the tables if all that plans need is there. What an earlier run measured is kept.

    Raises:
        ConfigError: The folder has a profile of another device or of other models.
        FarsideError: A part of the device, or an executor on it, can't be had.
    """
    async with AsyncExitStack() as stack:
        stack.callback(os.close, _locked(task.out))
        header = _begin(task)
        runs = RunsFile(task.out)
        stage = _Stage(task, stack)
        if runs.rows:
            say(f"{task.out}: goes on after {len(runs.rows)} rows.")
        cells = await _measure_all(task, header, runs, stage, say)
        if not header.process_mb:
            header = await stage.with_process_mb(header)
            write_header(task.out, header)
        if header.process_mb is None:
            say(f"What a process takes is not counted here: plans reckon with {PROCESS_MB:,.0f} MB besides models.")
        lacks = missing(header, runs.rows)
        if not lacks:
            write_tables(task.out, header, runs.rows)
    return ProfileResult(cells=cells, rows=len(runs.rows), missing=lacks)


def _locked(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_file(folder / ".lock")
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}", hint="name another folder with --out") from error
    if lock is None:
        raise ConfigError(f"{folder}: another run measures into it", hint="wait for it, or name another with --out")
    return lock


def _begin(task: ProfileTask) -> Header:
    device = fingerprint(task.driver_name, task.driver, task.device, [model.framework for model in task.models])
    header = read_header(task.out)
    if header is not None:
        problem = profile_problem(task.out, header, device, task.models)
        if not problem and header.largest != {model.name: model.max_batch for model in task.models}:
            problem = f"{task.out}: is a profile of other models or batches: {', '.join(sorted(header.models))}"
        if not problem and header.parts != task.parts:
            problem = f"{task.out}: is a profile of the parts {', '.join(map(str, header.parts))}"
        if problem:
            raise ConfigError(problem, hint="name another folder with --out")
        if task.slo_ms:  # they change the tables, and nothing that was measured
            models = {
                name: msgspec.structs.replace(model, slo_ms=task.slo_ms.get(name, model.slo_ms))
                for name, model in header.models.items()
            }
            header = msgspec.structs.replace(header, models=models)
            write_header(task.out, header)
        return header
    if (task.out / RUNS).exists():
        raise ConfigError(f"{task.out}: has {RUNS}, but no {HEADER} that says of what", hint="name another with --out")
    header = Header(
        version=VERSION,
        device=device,
        models={model.name: _profiled(model, task.slo_ms.get(model.name)) for model in task.models},
        parts=task.parts,
        process_mb=0.0,
        seed=_SEED,
    )
    write_header(task.out, header)
    return header


def _profiled(model: ModelFile, slo_ms: float | None) -> ProfiledModel:
    return ProfiledModel(
        file=Path(model.path).name,
        sha256=model.sha256,
        max_batch=model.max_batch,
        slo_ms=slo_ms,
        memory_mb=_model_mb(model),
        input=rows_of(model),
    )


def _model_mb(model: ModelFile) -> float:
    """Its weights and its slots."""
    return (model.file_bytes + SLOTS * slot_bytes(model)) / _MB


async def _measure_all(task: ProfileTask, header: Header, runs: RunsFile, stage: "_Stage", say: Say) -> int:
    ends_s = time.monotonic() + 60 * task.minutes if task.minutes is not None else None
    done = runs.done()
    measured = 0
    for number in range(ROUNDS if ends_s is None else ROUNDS_MAX):
        cells = list(round_of(header.largest, header.parts, random.Random(f"{header.seed}/{number}")))
        for cell in cells:
            if (number, cell) in done:
                continue
            if ends_s is not None and time.monotonic() >= ends_s:
                return measured
            runs.add(await stage.measured(number, cell))
            measured += 1
            if measured % 20 == 0:
                say(f"round {number + 1}: {measured} cells measured")
    return measured


class _Stage:
    """Executors that stay open from cell to cell: they change size where the driver can; otherwise each has one."""

    def __init__(self, task: ProfileTask, stack: AsyncExitStack) -> None:
        self._task, self._stack = task, stack
        self._open: list[BusyExecutor] = []
        self._best_s = min(_spin_s() for _ in range(10))

    async def measured(self, number: int, cell: Cell) -> list[Run]:
        """The rows of one cell: measured again while the machine is noisy, at most twice."""
        busy: list[tuple[BusyExecutor, str, int]] = []
        for side in cell:
            executor = await self._on(side, [one for one, _, _ in busy])
            busy.append((executor, side.model, side.batch))
        samples: tuple[Sample, ...] = ()
        noise = 0.0
        for _ in range(TRIES):
            noise = self._noise()
            samples = await measure(busy, seconds=self._task.run_s)
            noise = max(noise, self._noise())
            if noise <= NOISE_MAX:
                break
        return [self._row(number, cell, at, busy[at][0], samples[at], noise) for at in range(len(cell))]

    async def with_process_mb(self, header: Header) -> Header:
        """The header with what an executor's process takes besides its models, if that is counted."""
        if not self._open:
            await self._on(Side("", WHOLE_PCT, 1), [])
        found_bytes = self._task.driver.process_bytes(self._task.device, self._open[0].executor.pid)
        if found_bytes is None:
            return msgspec.structs.replace(header, process_mb=None)
        return msgspec.structs.replace(header, process_mb=round(max(1.0, found_bytes / _MB - self._models_mb), 1))

    @property
    def _models_mb(self) -> float:
        return sum(_model_mb(model) for model in self._task.models)

    async def _on(self, side: Side, taken: Sequence[BusyExecutor]) -> BusyExecutor:
        free = [one for one in self._open if one not in taken]
        for one in sorted(free, key=lambda one: one.executor.place.part_pct != side.part_pct):
            if one.executor.place.part_pct == side.part_pct or await one.executor.resize(side.part_pct):
                return one
        if not self._has_place():
            await self._close(free)
            free = []
        try:
            return await self._started(side.part_pct)
        except FarsideError:
            if not free:
                raise
        # What waits for its cells may hold the instance or the memory that this one needs.
        await self._close(free)
        return await self._started(side.part_pct)

    async def _started(self, part_pct: int) -> BusyExecutor:
        busy = BusyExecutor()
        place = self._task.driver.open(self._task.device, part_pct)
        await busy.start(place, self._task.models, _SEED)
        self._stack.push_async_callback(busy.executor.close)
        self._open.append(busy)
        return busy

    def _has_place(self) -> bool:
        """Whether one more may be open: a new process on a GPU takes far longer than a cell, so all sizes stay."""
        if self._task.driver.traits.can_resize:
            return len(self._open) < _EXECUTORS_MAX
        driver, device = self._task.driver, self._task.device
        used_mb = 0.0
        for one in self._open:
            found_bytes = driver.process_bytes(device, one.executor.pid)
            used_mb += found_bytes / _MB if found_bytes is not None else PROCESS_MB + self._models_mb
        return used_mb <= _IDLE_MEMORY_MAX * driver.identity(device).memory_mb

    async def _close(self, executors: Sequence[BusyExecutor]) -> None:
        for one in executors:
            self._open.remove(one)
            await one.executor.close()

    def _row(self, number: int, cell: Cell, at: int, busy: BusyExecutor, sample: Sample, noise: float) -> Run:
        side, other = cell[at], cell[1 - at] if len(cell) > 1 else None
        quantiles = quantiles_ms(sample.took_s)
        capacity = getattr(self._task.driver, "capacity_pct", WHOLE_PCT) / 100
        conditions = self._task.driver.conditions(self._task.device)
        got = None if sample.used_share is None else round(100 * sample.used_share / capacity, 2)
        return Run(
            round=number, model=side.model, part_pct=side.part_pct, batch=side.batch,
            other_model=other.model if other else "", other_part_pct=other.part_pct if other else 0,
            other_batch=other.batch if other else 0,
            p50_ms=round(quantiles["p50"], 4), p95_ms=round(quantiles["p95"], 4), p99_ms=round(quantiles["p99"], 4),
            runs=len(sample.took_s), threads=busy.executor.place.entry.threads, share_asked_pct=side.part_pct,
            share_got_pct=got, clock_mhz=conditions.clock_mhz, temperature_c=conditions.temperature_c,
            noise_pct=round(100 * noise, 1), is_noisy=int(noise > NOISE_MAX),
        )  # fmt: skip

    def _noise(self) -> float:
        took_s = _spin_s()
        self._best_s = min(self._best_s, took_s)
        return took_s / self._best_s - 1


def _spin_s() -> float:
    began_s = time.perf_counter()
    for _ in range(_SPINS):
        pass
    return time.perf_counter() - began_s
