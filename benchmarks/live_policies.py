"""``python -m benchmarks.live_policies``: policies live, with jobs that sleep, beside their simulation.

Each part plays a day of a log in a sandbox of its own (`farside demo --scene live` plays the same way), as often as
``--runs`` says, and judges the median. Halfway between the first submission and the last the scheduler process is
killed with ``kill -9``, or what the part says happens instead.

* ``philly``: a day of Philly's log under QSSF, every virtual cluster by itself: average JCT and order.
* ``repeating``: a day of a generated log, whose users and names recur, under FIFO and under QSSF: the gain.
* ``lending``: Philly's day with lending, in which one virtual cluster starves: average wait, and how long owners wait
  for borrowers. Where Philly's log is not at hand, a generated one.
* ``join``: Philly's day under QSSF, or a generated one. A node that the manager has never seen joins: average JCT,
  order, and that jobs start there.
* ``leader``: Philly's day under QSSF. The manager is killed with all its processes, and another one on its store leads:
  average JCT and order.

A part that is not measured keeps its figures in the result file. The exit code is 1 where a bar is missed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.live_run import Run, table_of, words_of
from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.policy_runs import data_folder
from farside.cli.demo.live.compare import LiveCompared, compare, starts_on, waiting_when_joined
from farside.cli.demo.live.day import LiveDay, day_of, generated_log
from farside.cli.demo.live.halfway import FIRST, STANDBY, Halfway
from farside.cli.demo.live.rig import Played, play_day
from farside.cli.demo.live.scene import PHILLY
from farside.cli.demo.live.senders import GRACE_S
from farside.errors import ConfigError, FarsideError
from farside.scheduler.configured_rules import partitions_of
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.sim.trace.read import read_trace

RESULTS = Path(__file__).parent / "results" / "live_policies.json"
ERROR_MAX, GAIN_MIN, WAIT_MAX = 0.05, 0.9, 1.05
DECIDING_MAX_S, LATE_MAX_S = 1.0, 1.0
LONGEST_MAX_S = 1.0
"""Half of the median job: while a decision takes longer, jobs end that would make it another."""
RECOVERY_MAX_S = 4.0
"""Twice the median job. A day goes on for 80 s and longer after the kill, so its jobs lose less than the 5 % that their
average JCT may be off, and the policy less than the tenth of its gain that it may lose."""
REPEATING_SEED, REPEATING_LOAD = 8, 1.3
"""GPU seconds of the day, by those of its nodes: a queue grows, in which an order is worth something. The seed is
that of the first measurements, kept so that figures compare; the demo's (`farside.cli.demo.live.day`) was chosen
otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure that is judged. ``most``: it must not be above the bar; otherwise not below it.

    ``figure`` is None where there was nothing to measure in some run; the bar is missed then.
    """

    name: str
    figure: float | None
    bar: float
    most: bool = True

    @property
    def is_met(self) -> bool:
        """Whether it is within."""
        return self.figure is not None and (self.figure <= self.bar if self.most else self.figure >= self.bar)

    @property
    def said(self) -> str:
        """The figure."""
        return "none" if self.figure is None else f"{self.figure:.4f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what the arguments ask for, and writes it; the exit code."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.live_policies", description=__doc__)
    words.add_argument("--parts", default=",".join(PARTS), help="which, with commas; default: %(default)s")
    words.add_argument("--runs", type=int, default=5, help="of each part; default: %(default)s")
    words.add_argument("--side-by-side", type=int, default=2, help="runs at a time; default: %(default)s")
    words.add_argument("--data", type=Path, help="folder of the real traces; default: FARSIDE_DATA")
    words.add_argument("--output", type=Path, default=RESULTS, help="default: %(default)s")
    asked = words.parse_args(arguments)
    parts = [name for name in asked.parts.split(",") if name]
    if unknown := [name for name in parts if name not in PARTS]:
        words.error(f"--parts: no {unknown[0]}; there are {', '.join(PARTS)}")
    if min(asked.runs, asked.side_by_side) < 1:
        words.error("--runs and --side-by-side: at least 1")
    philly = data_folder(asked.data) / PHILLY
    missed = False
    for name in parts:
        head = {
            "command": this_command("benchmarks.live_policies"), "commit": this_commit(),
            "machine": asdict(this_machine()), "date": f"{datetime.now(UTC):%Y-%m-%d}",
        }  # fmt: skip
        try:
            record, bars, faults = measured(PARTS[name](philly), asked.runs, asked.side_by_side)
        except FarsideError as error:
            print(f"benchmarks: {name}: {error}", file=sys.stderr)
            missed = True
            continue
        keep(asked.output, name, {**head, **record, "load_after": round(os.getloadavg()[0], 2)})
        missed = tell(bars, faults) or missed
    return 1 if missed else 0


def tell(bars: Sequence[Bar], faults: Sequence[str]) -> bool:
    """Prints the bars; whether one is missed."""
    for bar in bars:
        met = "met" if bar.is_met else "MISSED"
        print(f"{bar.name}: {bar.said}, {'at most' if bar.most else 'at least'} {bar.bar:g}: {met}")
    for fault in faults:
        print(f"MISSED {fault}")
    return bool(faults) or not all(bar.is_met for bar in bars)


def keep(path: Path, name: str, record: Mapping[str, Any]) -> None:
    """Writes a part into the result file, in which the others stay."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**known, name: record}, indent=1) + "\n")


Judge = Callable[[Sequence[Run]], tuple[Bar, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A day, the policies under which it is played in each run, the bars, whether partitions lend, and what happens."""

    day: LiveDay
    policies: tuple[str, ...]
    judge: Judge
    lends: bool = False
    halfway: Halfway = Halfway.KILL


def measured(plan: Plan, runs: int, side_by_side: int) -> tuple[dict[str, Any], tuple[Bar, ...], tuple[str, ...]]:
    """A part's record, its bars, and what was not sound."""
    day = plan.day
    print(day.words, flush=True)
    # Jobs sleep, so that two cores can play more than one day at a time.
    with ThreadPoolExecutor(side_by_side) as pool:
        waiting = [pool.submit(played, plan, policy) for _ in range(runs) for policy in plan.policies]
        found = [one.result() for one in waiting]
    bars = (*plan.judge(found), *judge_delays(found, is_killed=plan.halfway is not Halfway.JOIN))
    record = {
        "day": day.words, "factor": day.factor, "halfway": plan.halfway, "jobs": len(day.jobs),
        "median_job_s": round(day.median_s, 3), "side_by_side": side_by_side,
        "runs": [asdict(run) for run in found], "table": table_of(found),
        "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in bars],
    }  # fmt: skip
    return record, bars, tuple(fault for run in found for fault in run.faults)


def played(plan: Plan, policy: str) -> Run:
    """The day, played once."""
    with tempfile.TemporaryDirectory(prefix="farside-live-") as folder:
        one = play_day(plan.day, Path(folder), lambda _: None, policy=policy, lends=plan.lends, halfway=plan.halfway)
        compared = compare(one.entries, one.config, one.needs_s, killed_s=one.killed_s)
    left = sum(state != "done" for state in one.states.values())
    faults = [*violations(one.entries, is_complete=True)]
    faults += [f"{left} jobs are not done"] * bool(left)
    faults += lead_faults(plan.halfway, compared.leaders)
    run = run_of(policy, compared, one.late_s, tuple(faults))
    if one.joined:
        run = with_join(run, one, compared)
    print(words_of(run), flush=True)
    return run


def with_join(run: Run, one: Played, compared: LiveCompared) -> Run:
    """The run, with what became of the node that joined and of its partition."""
    partition = partitions_of(one.config).owner_of(one.joined)
    jobs = [job for job in compared.fidelity.jobs if job.partition == partition]
    return replace(
        run,
        starts_on_joined=starts_on(one.entries, one.joined),
        joined_jct_s=statistics.fmean(job.jct_s for job in jobs),
        predicted_joined_jct_s=statistics.fmean(job.predicted_s for job in jobs),
        joined_partition=partition,
        waiting_when_joined=waiting_when_joined(one.entries, one.joined, {job.job_id for job in jobs}),
    )


def lead_faults(halfway: Halfway, leaders: tuple[str, str]) -> list[str]:
    """What is wrong with who led; ``leaders``: before and after the kill, as `leaders_around` says it."""
    before, after = leaders
    if halfway not in (Halfway.KILL, Halfway.LEADER):
        return []
    if not after:
        return ["no scheduler process took the lead after the kill"]
    due = (FIRST, STANDBY if halfway is Halfway.LEADER else FIRST)
    if leaders == due:
        return []
    return [f"{before or 'nobody'} led before the kill, and {after} after it, in place of {due[0]} and then {due[1]}"]


def run_of(policy: str, compared: LiveCompared, late_s: float, faults: tuple[str, ...]) -> Run:
    """A run's figures."""
    fidelity, delays = compared.fidelity, compared.delays
    return Run(
        policy=policy,
        jct_s=fidelity.mean_jct_s,
        predicted_jct_s=fidelity.predicted_mean_s,
        wait_s=compared.wait_s,
        predicted_wait_s=compared.predicted_wait_s,
        pairs=fidelity.order.pairs,
        swapped=fidelity.order.error,
        decisions=compared.decided.decisions,
        different=compared.decided.different,
        deciding_s=delays.deciding_s,
        longest_s=delays.longest_s,
        recovery_s=delays.recovery_s,
        starting_s=delays.starting_s,
        stopping_s=delays.stopping_s,
        guests=compared.guests,
        recalls=len(compared.recalls),
        longest_recall_s=max((one.waited_s for one in compared.recalls), default=0.0),
        late_s=late_s,
        faults=faults,
    )


# ---------------------------------------------------------------------------------------------- the parts


def _philly_day(path: Path) -> LiveDay:
    if not path.exists():
        raise ConfigError(f"there is no {path}", hint="name the folder of the traces: --data")
    return day_of(read_trace(path).jobs, path.name)


def _generated() -> str:
    return "generated log (farside sim trace generate repeating)"


def _philly(path: Path) -> Plan:
    return Plan(day=_philly_day(path), policies=("qssf",), judge=judge_equal)


def _repeating(_: Path) -> Plan:
    day = day_of(generated_log(REPEATING_SEED), _generated(), load=REPEATING_LOAD, is_whole=True)
    return Plan(day=day, policies=("fifo", "qssf"), judge=judge_gain)


def _any_day(path: Path) -> LiveDay:
    return _philly_day(path) if path.exists() else day_of(generated_log(), _generated())


def _lending(path: Path) -> Plan:
    return Plan(day=_any_day(path), policies=("qssf",), judge=judge_lending, lends=True)


def _join(path: Path) -> Plan:
    return Plan(day=_any_day(path), policies=("qssf",), judge=judge_join, halfway=Halfway.JOIN)


def _leader(path: Path) -> Plan:
    return Plan(day=_philly_day(path), policies=("qssf",), judge=judge_equal, halfway=Halfway.LEADER)


def judge_equal(runs: Sequence[Run]) -> tuple[Bar, ...]:
    """Average JCT and order are those of the simulation."""
    return (
        Bar(name="average JCT, off by", figure=statistics.median(abs(run.error) for run in runs), bar=ERROR_MAX),
        Bar(name="pairs that swapped", figure=statistics.median(run.swapped for run in runs), bar=ERROR_MAX),
    )


def judge_delays(runs: Sequence[Run], *, is_killed: bool = True) -> tuple[Bar, ...]:
    """The manager decides in time, and jobs come when the log says; otherwise its load is not the log's.

    ``is_killed``: a process was killed, so that decisions had to go on after that.
    """
    longest_s = max(run.recovery_s for run in runs) if all(run.recovery_s for run in runs) else None
    recovery = Bar(name="from the kill until decisions go on, seconds", figure=longest_s, bar=RECOVERY_MAX_S)
    return (
        Bar(name="mean of deciding, seconds, the longest", figure=max(run.deciding_s for run in runs),
            bar=DECIDING_MAX_S),
        Bar(name="the longest decision, seconds", figure=max(run.longest_s for run in runs), bar=LONGEST_MAX_S),
        *((recovery,) if is_killed else ()),
        Bar(name="a job's latest submission, seconds late", figure=max(run.late_s for run in runs), bar=LATE_MAX_S),
    )  # fmt: skip


def judge_gain(runs: Sequence[Run]) -> tuple[Bar, ...]:
    """QSSF gains over FIFO what it was simulated to gain: by how much the average JCT falls."""
    fifo, qssf = ([run for run in runs if run.policy == name] for name in ("fifo", "qssf"))
    shares = [
        (before.jct_s - after.jct_s) / (before.predicted_jct_s - after.predicted_jct_s)
        for before, after in zip(fifo, qssf, strict=True)
    ]
    gain = Bar(name="gain over FIFO, of the simulated one", figure=statistics.median(shares), bar=GAIN_MIN, most=False)
    return (*judge_equal(qssf), gain)


def judge_join(runs: Sequence[Run]) -> tuple[Bar, ...]:
    """Average JCT, also where the node joined, and order are those of the simulation, and the node was of use."""
    where = Bar(name="average JCT where the node joined, off by",
                figure=statistics.median(abs(run.joined_error) for run in runs), bar=ERROR_MAX)  # fmt: skip
    fewest = Bar(name="starts on the node that joined, the fewest", figure=min(run.starts_on_joined for run in runs),
                 bar=1, most=False)  # fmt: skip
    return (*judge_equal(runs), fewest, where)


def judge_lending(runs: Sequence[Run]) -> tuple[Bar, ...]:
    """Nobody waits longer than simulated, and no owner longer than a borrower's grace."""
    waits = [run.wait_s / run.predicted_wait_s for run in runs]
    return (
        Bar(name="average wait over the simulated one", figure=statistics.median(waits), bar=WAIT_MAX),
        Bar(name="an owner's longest wait for a borrower, seconds",
            figure=max(run.longest_recall_s for run in runs), bar=GRACE_S),
        Bar(name="starts on other virtual clusters' nodes, the fewest", figure=min(run.guests for run in runs),
            bar=1, most=False),
    )  # fmt: skip


PARTS: Mapping[str, Callable[[Path], Plan]] = {
    "philly": _philly, "repeating": _repeating, "lending": _lending, "join": _join, "leader": _leader,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
