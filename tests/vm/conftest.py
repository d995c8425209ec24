"""Guests for tests, and what is said of each when its test has ended.

`FARSIDE_VM` chooses: `smoke` (the default; one boot, part of `make test-long`), `all` (`make test-vm`), `none`.
"""

import faulthandler
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farside.errors import Unavailable
from tests.vm.harness.guest import Guest
from tests.vm.harness.network import Network, Workshop, network, workshop
from tests.vm.inside import FILE_LIMIT_S, Inside

# These run in a guest, by tests/vm/test_inside.py.
collect_ignore = ["guest"]

LOGS = Path(__file__).parents[2] / "build/vm"
LIMIT_S = 600 + FILE_LIMIT_S  # building the image included


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this run was not asked for."""
    mode = os.environ.get("FARSIDE_VM", "smoke")
    if mode not in ("smoke", "all", "none"):
        raise pytest.UsageError(f"FARSIDE_VM={mode}: smoke, all or none")
    ours = [item for item in items if item.get_closest_marker("vm")]
    # The smoke run repeats, in one guest, a part of what `all` runs file by file.
    wanted = [item for item in ours if mode == ("smoke" if item.get_closest_marker("smoke") else "all")]
    for item in wanted:
        item.add_marker(pytest.mark.timeout(LIMIT_S), append=False)
    if left_out := [item for item in ours if item not in wanted]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _patience() -> None:
    # pytest prints all stacks of a test that takes four minutes; these may, and have deadlines of their own.
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def shop() -> Iterator[Workshop]:
    """Image and payload; a machine that cannot have them skips, with what it lacks."""
    try:
        stack = workshop()
        made = stack.__enter__()
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        stack.__exit__(None, None, None)


@pytest.fixture
def guest(shop: Workshop, request: pytest.FixtureRequest) -> Iterator[Guest]:
    """One guest, fresh from the snapshot."""
    with _judged(shop, request, 1) as guests:
        yield guests[1]


@pytest.fixture
def pair(shop: Workshop, request: pytest.FixtureRequest) -> Iterator[Network]:
    """Two guests on a network of their own: `pair[1]`, `pair[2]`."""
    with _judged(shop, request, 2) as guests:
        yield guests


@pytest.fixture
def trio(shop: Workshop, request: pytest.FixtureRequest) -> Iterator[Network]:
    """Three guests on a network of their own."""
    with _judged(shop, request, 3) as guests:
        yield guests


@contextmanager
def _judged(shop: Workshop, request: pytest.FixtureRequest, count: int) -> Iterator[Network]:
    # `@pytest.mark.guests(memory_mib=1024, cpus=2)` changes the machines.
    marker = request.node.get_closest_marker("guests")
    with network(shop, count, **(marker.kwargs if marker else {})) as guests:
        try:
            yield guests
        finally:
            _keep_logs(guests, request.node.name)
        guests.judge()


def _keep_logs(guests: Network, test: str) -> None:
    folder = LOGS / re.sub(r"[^\w.-]+", "-", test)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for guest in guests:
        (folder / f"{guest.name}.kernel.log").write_text(guest.kernel_log())


_said: list[str] = []


@pytest.fixture
def inside(request: pytest.FixtureRequest) -> Inside:
    """Runs the tests of tests/vm/guest/ in a guest."""
    return Inside(LOGS, _said.append)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests inside of guests came to; the host's own summary counts each guest's run as one test."""
    if _said:
        terminalreporter.section("inside guests")
        for line in _said:
            terminalreporter.write_line(line)
