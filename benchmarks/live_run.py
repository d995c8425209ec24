"""One day that was played live: its figures, in a line and in a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One day, played once. Seconds of this machine.

    Attributes:
        swapped: Share of the pairs of jobs that waited together which started in another order.
        different: Decisions that are others when they are made again on the state that the log had then, of all
            ``decisions``.
        longest_s: The longest that deciding one start took.
        recovery_s: From the kill of the scheduler process, or its manager, until the next one decided; 0: none was.
        longest_recall_s: The longest that an owner waited for a borrower.
        starts_on_joined: Starts of jobs on the node that joined.
        joined_jct_s: Average JCT in the partition that a node joined, and ``predicted_joined_jct_s`` the same
            simulated; 0: none did.
        joined_partition: That partition; empty: no node joined, or there are no partitions.
        waiting_when_joined: Jobs of that partition that waited for GPUs when the node came.
        faults: What was not sound, in words.
    """

    policy: str
    jct_s: float
    predicted_jct_s: float
    wait_s: float
    predicted_wait_s: float
    pairs: int
    swapped: float
    decisions: int
    different: int
    deciding_s: float
    longest_s: float
    recovery_s: float
    starting_s: float
    stopping_s: float
    guests: int
    recalls: int
    longest_recall_s: float
    late_s: float
    faults: tuple[str, ...]
    starts_on_joined: int = 0
    joined_jct_s: float = 0.0
    predicted_joined_jct_s: float = 0.0
    joined_partition: str = ""
    waiting_when_joined: int = 0

    @property
    def error(self) -> float:
        """How far the simulated average JCT is off, as a share of the live one."""
        return self.predicted_jct_s / self.jct_s - 1

    @property
    def joined_error(self) -> float:
        """How far the simulated average JCT is off in the partition that a node joined, as a share of the live one."""
        return self.predicted_joined_jct_s / self.joined_jct_s - 1


def words_of(run: Run) -> str:
    """A run in a line, with what applies to it."""
    said = (
        f"{run.policy}: average JCT {run.jct_s:.2f} s, simulated {run.predicted_jct_s:.2f} s "
        f"({100 * run.error:+.1f} %), wait {run.wait_s:.2f} and {run.predicted_wait_s:.2f} s, "
        f"{100 * run.swapped:.1f} % of {run.pairs:,} pairs swapped, "
        f"{run.different} of {run.decisions:,} decisions differ, "
        f"{1000 * run.deciding_s:.0f} + {1000 * run.starting_s:.0f} + {1000 * run.stopping_s:.0f} ms a job, "
        f"a decision {run.longest_s:.2f} s at most, submitted {run.late_s:.2f} s late"
    )
    if run.recovery_s:
        said += f", decided again {run.recovery_s:.2f} s after the kill"
    if run.recalls:
        said += f", an owner waited {run.longest_recall_s:.2f} s at most"
    if run.joined_jct_s:
        said += (
            f", {run.waiting_when_joined} jobs waited when a node joined {run.joined_partition or 'the cluster'}, "
            f"{run.starts_on_joined} starts on it, "
            f"average JCT there {run.joined_jct_s:.2f} s, simulated {run.predicted_joined_jct_s:.2f} s"
        )
    return said


def table_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The runs for a document."""
    header = (
        "policy", "average JCT", "simulated", "off by", "swapped", "decided otherwise", "average wait", "simulated",
        "charged a job", "longest decision", "recovery", "late"
    )  # fmt: skip
    rows = [
        [
            run.policy, f"{run.jct_s:.2f} s", f"{run.predicted_jct_s:.2f} s", f"{100 * run.error:+.1f} %",
            f"{100 * run.swapped:.1f} %", f"{run.different} of {run.decisions:,}",
            f"{run.wait_s:.2f} s", f"{run.predicted_wait_s:.2f} s",
            f"{1000 * (run.deciding_s + run.starting_s + run.stopping_s):.0f} ms",
            f"{run.longest_s:.2f} s", f"{run.recovery_s:.2f} s" if run.recovery_s else "-", f"{run.late_s:.2f} s",
        ]
        for run in runs
    ]  # fmt: skip
    return {"header": header, "rows": rows}
