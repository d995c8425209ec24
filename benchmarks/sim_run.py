"""Runs a case of the simulator's benchmark in a process of its own."""

import subprocess
import sys
from pathlib import Path
from typing import overload

import msgspec

from benchmarks.sim_result import CycleCase, CycleFigures, TraceCase, TraceFigures
from farside.errors import FarsideError

ROOT = Path(__file__).parent.parent


class CaseError(FarsideError):
    """A case did not come to its end."""


@overload
def run_case(case: TraceCase) -> TraceFigures: ...
@overload
def run_case(case: CycleCase) -> CycleFigures: ...
def run_case(case: TraceCase | CycleCase) -> TraceFigures | CycleFigures:
    """Its figures.

    Raises:
        CaseError: The process failed.
    """
    kind = "trace" if isinstance(case, TraceCase) else "cycle"
    command = [sys.executable, "-m", "benchmarks.sim_case", kind, msgspec.json.encode(case).decode()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = next(reversed(done.stderr.strip().splitlines()), f"ended with {done.returncode}")
        raise CaseError(f"{kind} under {case.policy}: {last}")
    if isinstance(case, TraceCase):
        return msgspec.json.decode(done.stdout, type=TraceFigures)
    return msgspec.json.decode(done.stdout, type=CycleFigures)
