"""What kernels count while a workload runs, read by a shell that starts no process for it."""

from dataclasses import dataclass

from benchmarks.apps.talk import Talk
from tests.vm.harness.guest import Guest

TICKS_PER_S = 100
# Three lines at most; the last is empty where no process is named.
_SHELL = (
    "while read -r word; do read -r cpu </proc/stat; one=; "
    '[ -z "$word" ] || read -r one <"/proc/$word/stat"; '
    "while read -r name value; do case $name in pswpin) in=$value;; pswpout) out=$value;; esac; done </proc/vmstat; "
    'echo "$cpu|$in $out|$one"; done'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters of a machine, and of one process where it was named."""

    busy_s: float
    page_ins: int
    page_outs: int
    program_s: float | None


def parse(line: str) -> Reading:
    """What the shell said. Busy is all but idle and waiting for a disk."""
    cpu, pages, process = line.split("|")
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in cpu.split()[1:9])
    page_ins, page_outs = map(int, pages.split())
    # The name in brackets may hold anything; utime and stime are the 12th and 13th word after it.
    after = process.rpartition(")")[2].split()
    return Reading(
        busy_s=(user + nice + system + irq + softirq + steal) / TICKS_PER_S,
        page_ins=page_ins,
        page_outs=page_outs,
        program_s=(int(after[11]) + int(after[12])) / TICKS_PER_S if after else None,
    )


class Meter:
    """Reads one guest's counters, and those of process ``pid`` unless that is 0."""

    def __init__(self, guest: Guest, pid: int = 0) -> None:
        self._talk = Talk(guest, _SHELL)
        self.pid = pid

    def read(self) -> Reading:
        """The counters now; costs the guest a millisecond."""
        return parse(self._talk.ask(str(self.pid or "")))

    def close(self) -> None:
        """Ends the shell."""
        self._talk.close()
