"""pytest in a guest: what is run, and how its results come back."""

import os
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vm.harness.guest import Guest

TREE = "/farside/tree"
RESULTS = "/run/farside-results.xml"
NOTHING_COLLECTED = 5
# Emulated processors are ten times slower than pytest's own limit of a test expects; a host that others use is slower
# still, and says so. Beside other tests a guest has a part of the processors.
PATIENCE = float(os.environ.get("FARSIDE_PATIENCE", "3" if "PYTEST_XDIST_WORKER" in os.environ else "1"))
TEST_LIMIT_S = 900 * PATIENCE
FILE_LIMIT_S = 2400 * PATIENCE
# What tests of survival leave (tests/vm/guest/survival.py).
ROWS = "/run/farside-survival.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How one test in a guest went; `trouble` is empty for one that passed, `shown` what it recorded of itself."""

    name: str
    outcome: str  # "passed", "failed", "skipped"
    duration_s: float
    trouble: str
    shown: tuple[str, ...] = ()


class Inside:
    """Runs test files in a guest, and keeps their results in `logs`."""

    def __init__(self, logs: Path, say: Callable[[str], None]) -> None:
        self._logs = logs
        self._say = say

    def run(
        self, guest: Guest, name: str, files: Sequence[str], *options: str, limit_s: float = FILE_LIMIT_S
    ) -> tuple[Case, ...]:
        """Runs files of tests/vm/guest/, root in the guest; returns how each test went. ``name``: of the results.

        Fails the calling test with pytest's own words when any test inside failed, and skips it when all were skipped.
        """
        words = ["env", f"FARSIDE_HOST_PATIENCE={PATIENCE:g}", "python3", "-B", "-m", "pytest"]
        words += ["-p", "no:cacheprovider", "--confcutdir=tests/vm/guest"]
        # The newer family has no room for what a test records of itself.
        words += [f"--junitxml={RESULTS}", "-o", "junit_family=xunit1"]
        words += ["-o", f"timeout={TEST_LIMIT_S}", "-o", "faulthandler_timeout=0"]
        words += [*options, *(f"tests/vm/guest/{file}" for file in files)]
        done = guest.outcome(f"cd {TREE} && {shlex.join(words)}", limit_s=limit_s)
        if done.status not in (0, 1):
            pytest.fail(f"pytest in the guest ended with {done.status}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}")
        results = self._logs / f"{name}.xml"
        results.parent.mkdir(parents=True, exist_ok=True)
        guest.get(RESULTS, results)
        keep_rows(guest, self._logs / f"survival/{results.stem}.jsonl")
        cases = read_results(results.read_text())
        for case in cases:
            reason = f": {case.trouble.splitlines()[0]}" if case.trouble else ""
            self._say(f"{case.outcome:7} {case.duration_s:6.1f} s  {case.name}{reason}")
            for line in case.shown:
                self._say(f"{'':19}{line}")
        if done.status:
            pytest.fail(f"in {guest.name}:\n{done.stdout[-12000:]}", pytrace=False)
        if cases and all(case.outcome == "skipped" for case in cases):
            pytest.skip("; ".join(sorted({case.trouble.splitlines()[0] for case in cases})))
        return cases


def keep_rows(guest: Guest, target: Path) -> None:
    """Fetches the rows of the table of survival that tests have left in the guest, if any have."""
    if guest.outcome(f"test -s {ROWS}").status == 0:
        target.parent.mkdir(parents=True, exist_ok=True)
        guest.get(ROWS, target)


def read_results(junit: str) -> tuple[Case, ...]:
    """The cases of pytest's junit file."""
    return tuple(_case(found) for found in ElementTree.fromstring(junit).iter("testcase"))


def _case(found: ElementTree.Element) -> Case:
    trouble = next((part for part in found if part.tag in ("failure", "error", "skipped")), None)
    outcome = "passed" if trouble is None else "skipped" if trouble.tag == "skipped" else "failed"
    name = f"{found.get('classname', '').rsplit('.', 1)[-1]}::{found.get('name')}"
    said = "" if trouble is None else (trouble.get("message") or trouble.text or trouble.tag)
    shown = tuple(f"{part.get('name')}: {part.get('value')}" for part in found.iter("property"))
    return Case(name=name, outcome=outcome, duration_s=float(found.get("time") or 0), trouble=said, shown=shown)
