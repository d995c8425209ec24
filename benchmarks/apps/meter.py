"""What a guest's kernel counts while a workload runs (counters.py), from outside."""

from dataclasses import dataclass

import benchmarks.apps.counters
from benchmarks.apps.talk import Talk
from tests.vm.harness.guest import Guest
from tests.vm.inside import TREE

_PROGRAM = f"{TREE}/{benchmarks.apps.counters.__name__.replace('.', '/')}.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters of a machine, and the CPU time of one process where that was named."""

    busy_s: float
    page_ins: int
    page_outs: int
    program_s: float | None


class Meter:
    """Reads one guest's counters, and those of process ``pid`` unless that is 0."""

    def __init__(self, guest: Guest, pid: int = 0) -> None:
        self._talk = Talk(guest, f"exec python3 -IS {_PROGRAM} {pid or ''}")

    def read(self) -> Reading:
        """The counters now."""
        return Reading(**self._talk.ask_json("read"))

    def close(self) -> None:
        """Ends what reads them."""
        self._talk.close()
