"""What all tests share."""

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from farside.log import ROOT
from tests.support.findings import findings_of

if TYPE_CHECKING:
    from xdist.remote import Producer

    from tests.support.side_by_side import SideBySide

# How long an example takes, or the making of one, depends on what else the machine does, and no test judges that. Each
# run tries the same examples, so that a run fails for what was changed; `make test-random` tries new ones, and 100
# where a test sets no number.
settings.register_profile(
    "farside", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=40
)
settings.register_profile(
    "random", settings.get_profile("farside"), derandomize=False, print_blob=True, max_examples=100
)
settings.load_profile("farside")

# Hardly anything is garbage before all tests are collected, and looking for it is a fifth of the work of that.
gc.disable()

# Hypothesis also tries the constants of the modules that are loaded. A test would get other examples in another worker,
# beside other files or alone, and one that fails could not be repeated by itself.
_constants_of_what_is_loaded = providers._get_local_constants


def _constants() -> Constants:
    random = settings.get_current_profile_name() == "random"
    return _constants_of_what_is_loaded() if random else providers._local_constants


providers._get_local_constants = _constants

# A shell starts what it puts into the background with SIGINT ignored, and programs that tests start would inherit that:
# Ctrl-C would not end them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Logs go where they went before: a program that a test runs within itself sends them to a stream of that test."""
    root = logging.getLogger(ROOT)
    handlers, level, propagate = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "SideBySide":
    """What pytest-xdist asks for the order in which it gives tests to its workers, when it runs them at all."""
    from tests.support.side_by_side import SideBySide

    config.option.loadscopereorder = False  # it would sort by how many tests a file has
    return SideBySide(config, log)


LONG_LIMIT_S = 1_800
"""A test marked `long` may take so many seconds if it names no limit: beside others of the kind, on a slow machine."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Marks tests of findings, before `-m` asks for marks, and gives long tests a limit of their own.

    In a worker of pytest-xdist, what takes longest is first.
    """
    for item in items:
        for number in findings_of(item):
            item.add_marker(pytest.mark.finding(number))
            # Unlike marks, these are in the reports of pytest-xdist's workers too.
            item.user_properties.append(("finding", number))
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_LIMIT_S))
    yield
    _put_longest_first(config, items)


def _put_longest_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests.support.side_by_side import rank

        items.sort(key=lambda item: rank(item.nodeid))


def pytest_collection_finish() -> None:
    """All modules are loaded now, and stay: the garbage collector need not go through them again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With FARSIDE_NO_SKIP a skipped test has failed: where everything is installed, nothing may be left out."""
    return _not_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """So has a file of tests."""
    return _not_skipped((yield))


ReportT = TypeVar("ReportT", pytest.TestReport, pytest.CollectReport)


def _not_skipped(report: ReportT) -> ReportT:
    if report.skipped and os.environ.get("FARSIDE_NO_SKIP") and not hasattr(report, "wasxfail"):
        why = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"FARSIDE_NO_SKIP forbids it: {why}"
    return report
