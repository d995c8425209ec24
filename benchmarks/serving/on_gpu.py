"""Serving on this machine's GPU: its parts shown disjoint, models measured on them, and a plan's promise."""

import asyncio
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_least, at_most, bars
from benchmarks.serving.deployed import VIOLATED_MAX, WHO_GOES_FIRST, kept_folder, outcomes, play
from benchmarks.serving.machine_noise import noisy_note
from farside.agent.serving.executor import Executor, start_executor
from farside.agent.serving.handle import BatchDone
from farside.agent.serving.partition.catalog import DRIVERS
from farside.agent.serving.partition.green import NAME as GREEN
from farside.agent.serving.partition.green import GreenDriver
from farside.agent.serving.partition.nvidia import open_nvml
from farside.agent.serving.partition.policy import Device
from farside.cli.demo.serving_load import OUTCOMES, poisson
from farside.cli.demo.serving_rig import MAX_BATCH, Running, mix_of, profile
from farside.errors import Unavailable
from farside.serve.table import Tables

SHARE, SECONDS, QUICK_SECONDS = 0.8, 60.0, 15.0
MINUTES, QUICK_MINUTES = 2.0, 1.0
PARTS = "20,40,60,80,100"
CUTS = ((20, 80), (40, 60), (50, 50))
# No SLO is shorter: what a Python client and front take beside is then little.
SLO_MS_MIN = 40.0


def measure_green(*, quick: bool) -> Figure:
    """Green contexts: parts, profile, and promise.

    Raises:
        Unavailable: There is no GPU, or something that serves on it is missing.
    """
    return _measured(GREEN, quick=quick)


def measure_mps(*, quick: bool) -> Figure:
    """MPS: profile and promise; its parts are limits, which nothing keeps apart.

    Raises:
        Unavailable: There is no GPU, or something that serves on it is missing.
    """
    return _measured("mps", quick=quick)


def _measured(driver_name: str, *, quick: bool) -> Figure:
    if problem := DRIVERS[driver_name]().capabilities().problem:
        raise Unavailable(problem)
    minutes, seconds = (QUICK_MINUTES, QUICK_SECONDS) if quick else (MINUTES, SECONDS)
    seen = asyncio.run(seen_sms()) if driver_name == GREEN else ()
    folder = kept_folder()
    _make_models(folder)
    tables = profile(folder, ("--device", driver_name), minutes=minutes, parts=PARTS)
    mix = mix_of(tables, work=_work(), slo_ms_min=SLO_MS_MIN, count=1)
    rates = mix.rates(SHARE)
    with Running(folder, mix, rates, gpu_driver=driver_name, extra=("gpus_max = 1",)) as running:
        plan = [
            f"{one.glet.part_pct} %: {', '.join(f'{each.model} x{each.batch}' for each in one.glet.models)}"
            for one in running.status().glets
        ]
        run = play(running, poisson(rates, seconds, 1))
    result = run.result
    violated = 100 * result.violated_share()
    rows = tuple(
        (
            model, f"{mix.slo_ms[model]:g}", f"{rates[model]:.1f}", *outcomes(result, model),
            f"{100 * result.violated_share(model):.2f}", f"{result.latency_ms(0.5, model):.1f}",
            f"{result.latency_ms(0.99, model):.1f}",
        )
        for model in sorted(rates)
    )  # fmt: skip
    served = Table(
        caption=f"{seconds:g} s of Poisson requests at {SHARE:g} of the planned maximum",
        header=("model", "SLO ms", "requests/s", *OUTCOMES, "violated %", "p50 ms", "p99 ms"),
        rows=rows,
    )
    common = max((len(one & other) for one, other, *_ in seen), default=0)
    reached = [at_most("violated, %", violated, 100 * VIOLATED_MAX)]
    if seen:
        reached += [
            at_most("SMs that two parts have in common", common, 0),
            at_least("fewest SMs that a part was seen on", min(len(one) for pair in seen for one in pair), 1),
        ]
    return Figure(
        key=f"serving-{driver_name}",
        title=f"A GPU in parts by {driver_name}",
        source="glet 5.2",
        tables=(*_tables_of_parts(seen), _latencies(tables), served, bars(*reached)),
        notes=(
            f"On {_device()}. The plan: {'; '.join(plan)}.",
            f"{violated:.2f} % violated in all; {100 * VIOLATED_MAX:g} % is the most.",
            f"The client was {1000 * result.behind_s:.0f} ms behind at worst.",
            f"{noisy_note([run])} {WHO_GOES_FIRST}",
        ),
    )


# ---- parts


Seen = Sequence[tuple[frozenset[int], frozenset[int]]]


async def seen_sms(cuts: Sequence[tuple[int, int]] = CUTS) -> Seen:
    """The SMs on which blocks of two executors beside each other ran, by a kernel that records them, for each cut.

    Raises:
        FarsideError: There are no such parts here.
    """
    from benchmarks.serving.sm_ids import teller

    driver = GreenDriver(program=("-P", str(Path(__file__).with_name("sm_ids.py"))))
    found: list[tuple[frozenset[int], frozenset[int]]] = []
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        for cut in cuts:
            done: asyncio.Queue[BatchDone] = asyncio.Queue()
            pair: list[Executor] = []
            for part_pct in cut:
                place = driver.open(Device(), part_pct)
                pair.append(await start_executor(place, [teller(file.name)], done.put_nowait, lambda _: None))
            for one in pair:  # both at once
                one.run(1, "teller", 1, 0)
            for _ in pair:
                if problem := (await done.get()).problem:
                    raise Unavailable(problem)
            first, second = (frozenset(map(int, one.slot_outputs("teller", 0)["output"][0])) for one in pair)
            found.append((first, second))
            for executor in pair:
                await executor.close()
    return found


def _tables_of_parts(seen: Seen) -> tuple[Table, ...]:
    if not seen:
        return ()
    rows: list[Row] = [
        (f"{a} and {b} %", f"{len(one)}", f"{len(other)}", f"{len(one & other)}")
        for (a, b), (one, other) in zip(CUTS, seen, strict=True)
    ]
    return (
        Table(
            caption="SMs on which a kernel of each of two parts ran, as it records them",
            header=("parts", "of the first", "of the second", "in common"),
            rows=tuple(rows),
        ),
    )


# ---- models


@cache
def _work() -> dict[str, float]:
    from benchmarks.serving.gpu_models import WORK

    return dict(WORK)


def _make_models(folder: Path) -> None:
    from benchmarks.serving.gpu_models import make_gpu_models

    make_gpu_models(folder)


def _latencies(tables: Tables) -> Table:
    parts = [int(one) for one in PARTS.split(",")]
    return Table(
        caption=f"ms of a batch of 1 and of {MAX_BATCH}, p95, alone on a part",
        header=("model", *(f"{part} %" for part in parts)),
        rows=tuple(
            (name, *(f"{model.latency_ms[part][0]:.2f}, {model.latency_ms[part][-1]:.2f}" for part in parts))
            for name, model in sorted(tables.models.items())
        ),
    )


def _device() -> str:
    """The GPU, its driver, and its clock now and at most."""
    nvml = open_nvml()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    clocks = [call(gpu, nvml.NVML_CLOCK_SM) for call in (nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetMaxClockInfo)]
    name, driver = nvml.nvmlDeviceGetName(gpu), nvml.nvmlSystemGetDriverVersion()
    return f"{name}, driver {driver}, SM clock {clocks[0]} MHz of {clocks[1]}"
