"""Beside Triton's own core: the same models, threads, cores and requests, in turns, whoever leads.

Triton has the best of three settings of its batching, by the highest rate that it passes. It shares the cores among its
processes as Linux does; we cut them. A queue without deadlines serves everybody too late where there is too much.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_least, bars
from benchmarks.serving.deployed import VIOLATED_MAX, Server, prepared
from benchmarks.serving.fidelity import write_plan
from benchmarks.serving.gain import OURS, Contender, contender
from benchmarks.serving.highest import TRIAL_HEADER, Search, Trial, attempt
from benchmarks.serving.triton import SETTINGS, Triton
from farside.cli.demo.serving_rig import Mix, Running, devices
from farside.serve.table import Tables, read_tables

FARSIDE, TRITON = "farside", "triton"
SURE_SHARE, OVER_TIMES = 0.8, 1.5
# Of Triton's goodput: at most 2 % behind at the sure share, ahead beyond what it passes.
SURE_MIN, OVER_MIN = 0.98, 1.0
# What is served is searched for in these ranges: of the planned maximum, then around what was found.
_FIRST_RANGE, _RANGE = (0.4, 4.0), 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Seconds and steps of a search among the settings, and of those that are compared; and how often all is done."""

    setting_s: float = 15.0
    setting_steps: int = 6
    seconds: float = 40.0
    steps: int = 5
    repeats: int = 3
    simulated_s: float = 120.0


QUICK = Effort(setting_s=5.0, setting_steps=3, seconds=8.0, steps=3, repeats=1, simulated_s=30.0)

Start = Callable[[float], AbstractContextManager[Server]]


@dataclass(slots=True)
class _Runs:
    """Starts servers for single runs at shares of the mix, and keeps what came of each."""

    mix: Mix
    rows: list[Row] = field(default_factory=list[Row])

    def one(self, name: str, start: Start, share: float, seconds: float, seed: int) -> Trial:
        """A server that is started for one run."""
        with start(share) as server:
            trial = attempt(server, self.mix.rates(share), seconds, seed)
        self.rows.append(trial.row(name, share))
        print(" ".join(self.rows[-1]), flush=True)
        return trial


def measure_peers(*, quick: bool) -> Figure:
    """Both, on models that are measured now.

    Raises:
        FarsideError: Triton can't be installed, or a server does not start.
    """
    folder, mix = prepared(quick=quick)
    return peers_figure(folder, mix, read_tables(folder / "profile"), QUICK if quick else Effort())


def peers_figure(folder: Path, mix: Mix, tables: Tables, effort: Effort) -> Figure:
    """The figure, of models that are in a folder with their profile; ``mix`` has the planned maximum."""
    ours = contender(OURS, tables, mix, count=len(devices()))
    ours.plan_most()
    ours.simulate_most(effort.simulated_s)
    runs = _Runs(mix)
    passed = {setting: _best_of(runs, folder, tables, setting, effort) for setting in SETTINGS}
    best = max(SETTINGS, key=lambda setting: passed[setting])
    starts: Mapping[str, Start] = {
        FARSIDE: lambda share: Running(
            folder, mix, mix.rates(share), options=("--plan", str(write_plan(folder, ours.plan(share))))
        ),
        TRITON: _triton(folder, mix, tables, best),
    }
    expected = {FARSIDE: ours.simulated, TRITON: passed[best]}
    highest = _highest(runs, starts, expected, effort)
    sure, over = SURE_SHARE * ours.planned, OVER_TIMES * statistics.median(highest[TRITON])
    goodput = {share: _goodput(runs, starts, share, effort) for share in (sure, over)}
    others = {
        setting: runs.one(setting, _triton(folder, mix, tables, setting), over, effort.seconds, 1000).goodput
        for setting in SETTINGS
        if setting != best
    }
    return _figure(ours, passed, highest, goodput, others, runs.rows, effort)


def _triton(folder: Path, mix: Mix, tables: Tables, setting: str) -> Start:
    """Starts Triton, which is the same at all rates."""
    return lambda _: Triton(folder, mix, tables, setting)


def _best_of(runs: _Runs, folder: Path, tables: Tables, setting: str, effort: Effort) -> float:
    """The highest share that a setting of Triton's passes, in short runs."""
    search = Search(*_FIRST_RANGE, effort.setting_steps)
    while (share := search.share) is not None:
        trial = runs.one(setting, _triton(folder, runs.mix, tables, setting), share, effort.setting_s, 1)
        search.tell(passes=trial.passes)
    return search.passed


def _highest(
    runs: _Runs, starts: Mapping[str, Start], expected: Mapping[str, float], effort: Effort
) -> Mapping[str, list[float]]:
    """The highest shares that both pass, a search each repeat, in turns."""
    found: dict[str, list[float]] = {name: [] for name in starts}
    for repeat in range(effort.repeats):
        searches = {
            name: Search((share or _FIRST_RANGE[0]) / _RANGE, (share or _FIRST_RANGE[0]) * _RANGE, effort.steps)
            for name, share in expected.items()
        }
        for step in range(effort.steps):
            for name in _turns(starts, repeat + step):
                share = searches[name].share
                assert share is not None, "all have as many steps"
                trial = runs.one(name, starts[name], share, effort.seconds, 100 * repeat + step)
                searches[name].tell(passes=trial.passes)
        for name, search in searches.items():
            found[name].append(search.passed)
    return found


def _goodput(runs: _Runs, starts: Mapping[str, Start], share: float, effort: Effort) -> Mapping[str, float]:
    """Requests a second that both answer in time, medians of runs in turns."""
    found: dict[str, list[float]] = {name: [] for name in starts}
    for repeat in range(effort.repeats):
        for name in _turns(starts, repeat):
            found[name].append(runs.one(name, starts[name], share, effort.seconds, 1000 + repeat).goodput)
    return {name: statistics.median(each) for name, each in found.items()}


def _turns(starts: Mapping[str, Start], number: int) -> Sequence[str]:
    return list(starts)[:: -1 if number % 2 else 1]


def _figure(
    ours: Contender, passed: Mapping[str, float], highest: Mapping[str, Sequence[float]],
    goodput: Mapping[float, Mapping[str, float]], others: Mapping[str, float], rows: Sequence[Row], effort: Effort,
) -> Figure:  # fmt: skip
    total = sum(ours.mix.most.values())
    best = max(passed, key=lambda setting: passed[setting])
    over = max(goodput)
    rates = [
        (name, f"{total * statistics.median(each):.1f}", ", ".join(f"{total * one:.1f}" for one in each))
        for name, each in highest.items()
    ]
    judged = [
        (f"{total * share:.1f}", *(f"{each[name]:.1f}" for name in highest), f"{each[FARSIDE] / each[TRITON]:.2f}")
        for share, each in goodput.items()
        if each[TRITON]
    ]
    sure_ratio, over_ratio = (each[FARSIDE] / each[TRITON] if each[TRITON] else 0.0 for each in goodput.values())
    return Figure(
        key="serving-peers",
        title="Beside Triton's core",
        source="glet 5.2",
        tables=(
            Table(
                caption=f"Triton's batching: highest rate by runs of {effort.setting_s:g} s, and goodput at {over:.2f}",
                header=("setting", "passes, requests/s", f"in time/s at {total * over:.1f}"),
                rows=tuple(
                    (setting + (", kept" if setting == best else ""), f"{total * share:.1f}",
                     f"{others.get(setting, goodput[over][TRITON]):.1f}")
                    for setting, share in passed.items()
                ),
            ),
            Table(
                caption=f"Highest rates, requests a second of all models, runs of {effort.seconds:g} s in turns",
                header=("server", "median", "each search"),
                rows=tuple(rates),
            ),
            Table(
                caption=f"In time, at {SURE_SHARE:g} of our planned maximum and {OVER_TIMES:g} of its highest rate",
                header=("requests/s", *highest, f"{FARSIDE} by {TRITON}"),
                rows=tuple(judged),
            ),
            Table(caption="All runs", header=TRIAL_HEADER, rows=tuple(rows)),
            bars(
                at_least(f"in time by {TRITON}'s at {SURE_SHARE:g} of the planned maximum", sure_ratio, SURE_MIN),
                at_least(f"in time by {TRITON}'s at {OVER_TIMES:g} of its highest rate", over_ratio, OVER_MIN),
            ),
        ),
        notes=(
            f"Our planned maximum is {total * ours.planned:.1f} requests/s; the simulator passes "
            f"{total * ours.simulated:.1f}. At most {100 * VIOLATED_MAX:g} % may violate.",
            "Both run on the same cores, with an ONNX Runtime of one thread for each model and core; our parts have "
            "90 % of the cores, Triton has all. The client takes its time from the same cores.",
        ),
    )  # fmt: skip
