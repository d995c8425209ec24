"""`make attack`: runs the tests of the findings in docs/trust.md, and prints what became of each.

A test is of a finding when its docstring has the number, as [M10]. Words after the command go to pytest.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUEST = ROOT / "tests/vm/guest"
_ROW = re.compile(r"^\| ([HML]\d+) \| (.+?) \| (closed|partly|stays)\b.*\|$", re.MULTILINE)
_MARKED = re.compile(r"\[([HML]\d{1,2})\]")


class Results:
    """What became of tests, by finding, and the figures that some of them tell; a plugin of pytest."""

    def __init__(self) -> None:
        self.by_finding: dict[str, Counter[str]] = {}
        self.told: dict[str, Mapping[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts the call of a test, and what kept it from being called."""
        if report.when == "call" or not report.passed:
            for name, number in report.user_properties:
                if name == "finding":
                    self.by_finding.setdefault(str(number), Counter())[report.outcome] += 1
                elif name == "told" and isinstance(number, Mapping):
                    self.told[report.nodeid.rpartition("::")[2]] = number


def main() -> int:
    """Prints the table; the exit code is pytest's."""
    told = subprocess.run(
        ["git", "ls-files", "tests/*.py", ":!tests/vm/guest"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    files = [name for name in told if Path(name).name.startswith("test_") and _MARKED.search((ROOT / name).read_text())]
    results = Results()
    code = pytest.main(["-m", "finding and not vm", "-q", *sys.argv[1:], *files], plugins=[results])
    print("\n".join([*figures(results.told), *table((ROOT / "docs/trust.md").read_text(), results.by_finding)]))
    return int(code)


def table(document: str, results: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each finding: its number, its state by the document, how its attacks ended, and what it is."""
    guests = {number for file in GUEST.glob("test_*.py") for number in _MARKED.findall(file.read_text())}
    lines = ["", f"{'':4} {'state':7} {'attacks held':>12} {'failed':>7} {'skipped':>8}  what could be done"]
    for number, what, state in _ROW.findall(document):
        found = results.get(number, {})
        held, failed, skipped = (found.get(word, 0) for word in ("passed", "failed", "skipped"))
        lines.append(f"{number:4} {state:7} {held:12} {failed:7} {skipped:8}  {what[:90]}")
        if number in guests:
            lines.append(f"{'':42}besides, in a guest, which this command does not start: make test-vm")
    return lines


def figures(told: Mapping[str, Mapping[str, object]]) -> list[str]:
    """What tests counted of their attack, a line for each, below the name of the test."""
    lines: list[str] = []
    for name, counts in sorted(told.items()):
        lines += ["", name, *(f"{count!s:>14}  {what}" for what, count in counts.items())]
    return lines


if __name__ == "__main__":
    sys.exit(main())
