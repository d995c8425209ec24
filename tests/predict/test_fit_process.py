"""A model that is fitted in another process is the one that would have been fitted here."""

import asyncio
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from farside.errors import PeerError
from farside.scheduler.predict import fit_process
from farside.scheduler.predict.fit_process import Fitter, fitted_apart
from farside.scheduler.predict.gpu_time import GpuTimeParams, GpuTimeService
from farside.scheduler.predict.gpu_time_fit import Fitted, Lesson, learned_from
from farside.scheduler.predict.job_history import replay
from farside.scheduler.predict.rolling_estimate import RollingParams
from tests.predict.log import past, repeating


@cache
def lesson() -> Lesson:
    service = GpuTimeService(GpuTimeParams(), RollingParams())
    for fact in replay(past(repeating(400))):
        service.observe(fact)
    found = service.lesson()
    assert found is not None
    return found


@pytest.fixture
def usual_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fitting process computes as everybody does: tests beside this one leave no idle time."""
    code = f"import {fit_process.__name__} as fit; fit.take_idle_time = lambda: None; fit.main()"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$3"\n')  # -m, the module, its owner
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.usefixtures("usual_priority")
def test_it_finds_the_same_trees_weight_and_errors() -> None:
    apart, here = asyncio.run(fitted_apart(lesson())), learned_from(lesson())

    assert np.array_equal(apart.trees.duration_s(lesson().rows), here.trees.duration_s(lesson().rows))
    assert apart.trees.tables == here.trees.tables
    assert replace(apart, trees=here.trees, spread=None) == replace(here, spread=None)
    assert apart.spread is not None
    assert here.spread is not None
    assert apart.spread.state() == here.spread.state()


@pytest.mark.long
@pytest.mark.usefixtures("usual_priority")
def test_a_lesson_that_can_t_be_learned_from_is_one_line() -> None:
    broken = replace(lesson(), rows=lesson().rows[:1])

    with pytest.raises(PeerError) as refused:
        asyncio.run(fitted_apart(broken))

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true"])
def test_a_fit_that_fails_or_finds_no_model_leaves_the_way_free_for_the_next(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that could not be read failed the cycle that took it, and each one after it."""
    monkeypatch.setattr(sys, "executable", program)

    async def scene() -> tuple[Fitted | None, bool]:
        async with Fitter() as fitter:
            fitter.begin(lesson())
            async with asyncio.timeout(60):
                while fitter.is_fitting and fitter.take() is None:
                    await asyncio.sleep(0.01)
            return fitter.take(), fitter.is_fitting

    assert asyncio.run(scene()) == (None, False)


def test_a_fit_is_given_up_with_its_owner() -> None:
    async def scene() -> asyncio.Task[Fitted | None]:
        async with Fitter() as fitter:
            fitter.begin(lesson())
            await asyncio.sleep(0)
            assert fitter._fit is not None
            return fitter._fit

    assert asyncio.run(scene()).cancelled()
