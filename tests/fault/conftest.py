"""Rigs (an engine in this process) for the fault tests; those that need real processes use a sandbox."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.rig import Rig, default_params

MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    """A function that makes a rig with changed parameters; it ends with the test."""
    with ExitStack() as stack:

        def make(*, transport: str = "shm", **changes: int) -> Rig:
            return stack.enter_context(Rig(tmp_path, default_params(**changes), transport=transport))

        yield make


@pytest.fixture(params=["shm", "tcp"])
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    """A rig with the default parameters, once with each transport."""
    return make_rig(transport=request.param)


@pytest.fixture(params=["shm", "tcp"])
def hasty(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    """A rig that gives a donor half a second, for tests in which that has to pass."""
    return make_rig(transport=request.param, deadline_ms=500)
