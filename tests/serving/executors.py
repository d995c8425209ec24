"""Executors for tests: on small models that are made in place, on a whole core."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from farside.agent.serving.describe import ModelRequest, describe
from farside.agent.serving.executor import PROGRAM, BatchDone, Executor, ExecutorEnded, start_executor
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Device, Place
from farside.agent.serving.partition.whole import WholeDriver
from farside.serve.sample_models import make_models
from tests.support.waiting import DEADLINE_S


def small_models(
    folder: Path, names: Sequence[str] = ("mlp",), *, max_batch: int = 4, size: float = 0.02
) -> tuple[ModelFile, ...]:
    """Models that run in well under a millisecond, at this size."""
    for package in ("onnxruntime", "onnx"):
        pytest.importorskip(package, reason=f"needs {package} (requirements/serving.txt)")
    paths = make_models(folder, names, size=size)
    return tuple(describe(ModelRequest(name=path.stem, path=str(path), max_batch=max_batch)) for path in paths)


def answers(model: ModelFile, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What ONNX Runtime itself makes of it."""
    from farside.agent.serving.onnx_model import open_session

    found = dict[str, np.ndarray]()
    results = open_session(model.path, 1, "cpu").run(None, given)
    for output, array in zip(model.outputs, results, strict=True):
        assert isinstance(array, np.ndarray)
        found[output.name] = array
    return found


def children() -> set[str]:
    """Numbers of the processes that this one has started, and that have not ended."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def arenas() -> int:
    """How many arenas this process has mapped."""
    return sum("farside-arena" in line for line in Path("/proc/self/maps").read_text().splitlines())


class Watched:
    """An executor, and what it has told."""

    executor: Executor

    def __init__(self) -> None:
        self._done: asyncio.Queue[BatchDone] = asyncio.Queue()
        self._ended: asyncio.Queue[ExecutorEnded] = asyncio.Queue()

    async def start(
        self,
        models: Sequence[ModelFile],
        place: Place | None = None,
        *,
        p99_s: Mapping[str, float] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> Executor:
        self.executor = await start_executor(
            place or WholeDriver().open(Device(cores=(0,)), 100),
            models,
            self._done.put_nowait,
            self._ended.put_nowait,
            p99_s={model.name: DEADLINE_S for model in models} if p99_s is None else p99_s,
            program=program,
        )
        return self.executor

    async def done(self) -> BatchDone:
        return await asyncio.wait_for(self._done.get(), DEADLINE_S)

    async def ended(self) -> ExecutorEnded:
        return await asyncio.wait_for(self._ended.get(), DEADLINE_S)
