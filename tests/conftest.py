"""What all tests share."""

import os
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import settings

# How long one example takes depends on what else the machine does, and no test judges that.
settings.register_profile("farside", deadline=None)
settings.load_profile("farside")


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
