"""What a bound on executors that load costs: how long one takes to be ready."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Figure, Table
from benchmarks.serving.deployed import machine_note
from benchmarks.serving.machine_noise import Watch
from farside.agent.serving.describe import ModelRequest, describe_models
from farside.agent.serving.executor import start_executor
from farside.agent.serving.partition.cpu import CpuDriver
from farside.agent.serving.partition.policy import Device
from farside.cli.demo.serving_rig import MAX_BATCH, MODELS, devices
from farside.errors import Unavailable
from farside.serve.sample_models import make_models

BOUNDS = (100, 50, 20, 10)
TURNS, QUICK_TURNS = 3, 1
PART_PCT = 40


def measure_prepare(*, quick: bool) -> Figure:
    """All bounds, in turns.

    Raises:
        Unavailable: This machine has no CPU quotas.
    """
    if problem := CpuDriver().capabilities().problem:
        raise Unavailable(problem)
    with tempfile.TemporaryDirectory(prefix="prepare-") as place:
        folder = Path(place)
        for name, size in MODELS.items():
            make_models(folder, (name,), size=size)
        watch = Watch()
        found = asyncio.run(_all(folder, QUICK_TURNS if quick else TURNS))
        machine = watch.noise()
    rows = tuple((f"{bound}", f"{statistics.median(found[bound]):.1f}") for bound in BOUNDS)
    caption = f"An executor with {len(MODELS)} models on {PART_PCT} % of a core, median of starts in turns"
    return Figure(
        key="serving-prepare",
        title="A bound on executors that load",
        source="glet 4.6",
        tables=(Table(caption=caption, header=("prepare_pct", "ready after s"), rows=rows),),
        notes=(machine_note(machine),),
    )


async def _all(folder: Path, turns: int) -> dict[int, list[float]]:
    """Seconds of each start, by bound."""
    requests = [ModelRequest(name=name, path=str(folder / f"{name}.onnx"), max_batch=MAX_BATCH) for name in MODELS]
    models = await describe_models(requests)
    driver, device = CpuDriver(), Device(number=0, cores=devices()[-1:])
    found: dict[int, list[float]] = {bound: [] for bound in BOUNDS}
    for _ in range(turns):
        for bound in BOUNDS:
            began_s = time.monotonic()
            executor = await start_executor(
                driver.open(device, PART_PCT), models, lambda _: None, lambda _: None, prepare_pct=bound, prepare_s=120
            )
            found[bound].append(time.monotonic() - began_s)
            await executor.close(within_s=0)
    return found
