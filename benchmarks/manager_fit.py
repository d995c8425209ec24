"""``python -m benchmarks.manager_fit``: a manager's answers while it fits models of run times, beside those without.

The load is that of `benchmarks.manager_load`, under QSSF, whose estimator knows 100,000 ended jobs: a generated log, by
`policy_history`. Turns alternate: in one no model is fitted, in the next one fit follows the other without a pause,
each to all jobs that have ended, with new estimates of all that wait. Judged is the median over turns of an answer's
p99.

The manager is as installed but for two rules, since a fit comes once a week otherwise: it is due while a file exists,
and all of the history counts as jobs that ended while the manager ran do, not the newest 50,000 alone.

A fit has what nobody else wants of a processor, and a manager that is started by ``nice`` wants little: it is said
then, and its figures are no measure of the bar. The exit code is 1 where that is missed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.live_policies import Bar, tell
from benchmarks.load import BenchmarkError
from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.manager_load import Latency, ask, fill, latency_of, running_agents, running_manager
from farside.cli.demo.live.day import generated_log
from farside.client.manager_client import ManagerClient
from farside.errors import FarsideError
from farside.sandbox.waiting import wait_until
from farside.scheduler.sim.trace.job import Trace
from farside.scheduler.sim.trace.write import write_trace

RESULTS = Path(__file__).parent / "results" / "manager_fit.json"
WORSE_MAX = 1.1
SEED = 1
START_LIMIT_S, FIT_LIMIT_S = 600.0, 300.0
# Run by the manager's process before all else; it forks the one that decides.
_FIRST = """
import pathlib
from farside.scheduler.predict import learned_times
wanted, begun, taken = (pathlib.Path(path) for path in {paths!r})
lesson_of, take = learned_times.LearnedTimes.lesson, learned_times.LearnedTimes.take
def note(path, text):
    with path.open("a") as file:
        file.write(text + chr(10))
def lesson(self, now_s):
    found = lesson_of(self, now_s)
    if found is not None:
        note(begun, "a fit")
    return found
def counted(self, fitted):
    note(taken, str(fitted.trained_on))
    return take(self, fitted)
learned_times.REPLAYED_JOBS = {history}
learned_times.due = lambda rule, **told: "a benchmark asks for it" if wanted.exists() else ""
learned_times.LearnedTimes.lesson, learned_times.LearnedTimes.take = lesson, counted
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn. ``fits``: how many models came into use; ``trained_on``: jobs of the newest; 0: there was none."""

    is_fitting: bool
    latency: Latency
    fits: int
    trained_on: int


class Fits:
    """Whether the manager fits models, and how many it has."""

    def __init__(self, folder: Path) -> None:
        self._wanted, self._begun, self._taken = folder / "fit", folder / "begun", folder / "taken"
        for path in (self._begun, self._taken):
            path.touch()

    def first(self, history: int) -> str:
        """What the manager's process runs first."""
        return _FIRST.format(paths=[str(self._wanted), str(self._begun), str(self._taken)], history=history)

    def trained_on(self) -> list[int]:
        """Jobs that each model so far was fitted to."""
        return [int(line) for line in self._taken.read_text().split()]

    def begin(self) -> None:
        """One fit after the other from now on."""
        self._wanted.touch()

    def end(self) -> None:
        """No more fits. Returns when each that was begun has its model in use.

        Raises:
            PeerError: One does not come to its end.
        """
        self._wanted.unlink(missing_ok=True)
        wait_until(self._is_idle, "the last fit's model", limit_s=FIT_LIMIT_S)

    def _is_idle(self) -> bool:
        begun = len(self._begun.read_text().splitlines())
        return begun == len(self.trained_on())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes it; the exit code."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.manager_fit", description=__doc__)
    words.add_argument("--agents", type=int, default=2000, help="of eight GPUs each; default: %(default)s")
    words.add_argument("--jobs", type=int, default=10_000, help="that wait; default: %(default)s")
    words.add_argument("--history", type=int, default=100_000, help="jobs that have ended; default: %(default)s")
    words.add_argument("--pairs", type=int, default=5, help="of turns; default: %(default)s")
    words.add_argument("--seconds", type=float, default=20.0, help="of a turn; default: %(default)s")
    words.add_argument("--rate", type=float, default=20.0, help="requests a second, all clients; default: %(default)s")
    words.add_argument("--run", type=float, default=200.0, help="mean seconds that a job runs; default: %(default)s")
    words.add_argument("--output", type=Path, default=RESULTS, help="default: %(default)s")
    asked = words.parse_args(arguments)
    if asked.pairs < 1 or asked.history < 1000:
        words.error("--pairs: at least 1; --history: at least 1000, as no model is fitted to a few")
    head = {
        "command": this_command("benchmarks.manager_fit"), "commit": this_commit(), "machine": asdict(this_machine()),
        "date": f"{datetime.now(UTC):%Y-%m-%d}", "agents": asked.agents, "jobs": asked.jobs, "history": asked.history,
        "turn_s": asked.seconds, "rate": asked.rate, "nice": os.nice(0),
    }  # fmt: skip
    if head["nice"]:
        print(f"benchmarks: started at nice {head['nice']}: others go before the manager")
    try:
        with tempfile.TemporaryDirectory(prefix="farside-fit-") as folder:
            turns = measure(Path(folder), asked)
        found = figures(turns)
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    bar = judge(found)
    record = {
        **head, "turns": [asdict(turn) for turn in turns], "summary": found,
        "bars": [{**asdict(bar), "is_met": bar.is_met}],
    }  # fmt: skip
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(found))
    return 1 if tell([bar], ()) else 0


def measure(folder: Path, asked: argparse.Namespace) -> list[Turn]:
    """The turns; the first of a pair is by turns the one with fits and the one without.

    Raises:
        PeerError: The manager is not ready in time, or does not fit.
    """
    history, fits = folder / "history.csv", Fits(folder)
    write_trace(Trace(jobs=generated_log(SEED, asked.history)), history)
    told: dict[str, object] = {"policy": "qssf", "policy_history": history}
    turns: list[Turn] = []
    with ExitStack() as stack:
        started = running_manager(folder, asked.agents, first=fits.first(asked.history), limit_s=START_LIMIT_S, **told)
        address, fleet = stack.enter_context(started)
        stack.enter_context(running_agents(fleet, asked))
        queue = fill(stack.enter_context(ManagerClient(address)), asked)
        # The first model changes how all that wait are expected, and the next ones do not.
        fits.begin()
        wait_until(lambda: bool(fits.trained_on()), "the first model", limit_s=FIT_LIMIT_S)
        fits.end()
        for pair in range(asked.pairs):
            for is_fitting in (bool(pair % 2), not pair % 2):
                turns.append(_turn(folder, queue, asked, fits, is_fitting=is_fitting))
                print(_words(turns[-1]), flush=True)
    return turns


def _turn(folder: Path, queue: Sequence[str], asked: argparse.Namespace, fits: Fits, *, is_fitting: bool) -> Turn:
    before = len(fits.trained_on())
    if is_fitting:
        fits.begin()
    answers = ask(folder / "manager.sock", queue, asked).answers
    fits.end()
    trained_on = fits.trained_on()
    return Turn(
        is_fitting=is_fitting, latency=latency_of([took_ms for _, took_ms in answers]), fits=len(trained_on) - before,
        trained_on=trained_on[-1] if is_fitting else 0,
    )  # fmt: skip


def _words(turn: Turn) -> str:
    what = f"{turn.fits} fits to {turn.trained_on:,} jobs" if turn.is_fitting else "no fit"
    one = turn.latency
    return f"{what}: {one.requests} requests, median {one.median_ms:.1f} ms, p99 {one.p99_ms:.1f} ms"


def figures(turns: Sequence[Turn]) -> dict[str, float]:
    """Milliseconds of both kinds of turn, medians over turns; and p99 with fits over p99 without.

    Raises:
        BenchmarkError: In a turn that was to have fits no model came into use, or in one without one did.
    """
    if wrong := [turn for turn in turns if bool(turn.fits) is not turn.is_fitting]:
        raise BenchmarkError(f"{len(wrong)} of {len(turns)} turns had fits where none was wanted, or none")
    p99_ms, median_ms = (
        {is_fitting: statistics.median(_of(turn, name) for turn in turns if turn.is_fitting is is_fitting)
         for is_fitting in (False, True)}
        for name in ("p99_ms", "median_ms")
    )  # fmt: skip
    return {
        "p99_ms": p99_ms[False],
        "p99_fitting_ms": p99_ms[True],
        "p99_ratio": p99_ms[True] / p99_ms[False],
        "median_ms": median_ms[False],
        "median_fitting_ms": median_ms[True],
        "fits": sum(turn.fits for turn in turns),
        "trained_on": max(turn.trained_on for turn in turns),
    }


def _of(turn: Turn, name: str) -> float:
    found: float = getattr(turn.latency, name)
    return found


def judge(found: Mapping[str, Any]) -> Bar:
    """Answers take hardly longer while a model is fitted."""
    return Bar(name="p99 while models are fitted, of that without", figure=found["p99_ratio"], bar=WORSE_MAX)


if __name__ == "__main__":
    sys.exit(main())
