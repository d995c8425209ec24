"""``python -m benchmarks.colocation``: two real jobs on one node with turns, without, and one after the other.

Both jobs have an Aggregator, by TCP over the loopback of a network namespace of its own, on which tc's token bucket
sets the rate: PULL and PUSH of both meet on it, as on a machine's one link. The rate is chosen so that a job alone
communicates as long as it computes. Cases take turns in each round; a ratio is one within a round; the median is
printed with the least and the most. Needs root. Where computing alone spreads by over 15 %, no bar is judged.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.machine import this_command, this_commit, this_machine
from farside import admin
from farside.agent.training.subtask import INIT_COMP
from farside.cli.demo.colocated_node import Ran
from farside.errors import PeerError
from farside.group_time import WorkProfile, group_time
from farside.training.app.program import Options
from farside.training.loop.turns import EXECUTOR, SharedNode
from farside.training.static_plan import JOB, KEY_FILE, SERVICE

RESULTS = Path(__file__).parent / "results" / "colocation.json"
INSIDE = "FARSIDE_BENCH_NAMESPACE"
DEADLINE_S = 300.0
ADDRESS = "127.0.0.1:7683"
COLUMNS = 100_000
JOBS = {
    "lasso": Options(app="lasso", data="synthetic", rows=160, columns=2 * COLUMNS, blocks=8, penalty=0.1),
    "mlr": Options(app="mlr", data="synthetic", rows=160, columns=COLUMNS // 5, classes=10, blocks=8),
}
"""The two jobs: each pushes 1.6 MB of sums; its rows set how long an iteration computes."""
PUSHED_BYTES = 8 * 2 * COLUMNS
WARM_ITERATIONS = 5


def main() -> int:
    """Measures what is asked for, and writes it."""
    words = argparse.ArgumentParser(description="Jobs that take turns on a node, measured.")
    words.add_argument("--rounds", type=int, default=5, help="How often each case is measured")
    words.add_argument("--iterations", type=int, default=30, help="Iterations of each job")
    words.add_argument("--processors", type=int, default=0, help="Processors that jobs have, and threads; 0: all")
    words.add_argument("--output", type=Path, default=RESULTS, help="File for the figures, JSON")
    asked = words.parse_args()
    if os.geteuid() != 0:
        print(
            "farside: a shaped link needs a network namespace, and that needs root; nothing is measured",
            file=sys.stderr,
        )
        return 2
    if not os.environ.get(INSIDE):
        argv = ["unshare", "-n", sys.executable, "-m", "benchmarks.colocation", *sys.argv[1:]]
        return subprocess.run(argv, env={**os.environ, INSIDE: "1"}, check=False).returncode
    machine = this_machine()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="farside-colo-") as folder, ExitStack() as stack:
        bench = Bench(Path(folder), stack, iterations=asked.iterations, processors=asked.processors)
        found = bench.measure(asked.rounds)
    head = {"command": this_command("benchmarks.colocation"), "machine": msgspec.to_builtins(machine)}
    record = {**head, "commit": this_commit(), **found}
    asked.output.write_text(json.dumps(record, indent=1) + "\n")
    for table in found["tables"]:
        print("\n" + " | ".join(table["header"]))
        for row in table["rows"]:
            print(" | ".join(row))
    return 0


class Bench:
    """An Aggregator, an executor, and jobs that are started anew for each case."""

    def __init__(self, folder: Path, stack: ExitStack, *, iterations: int, processors: int = 0) -> None:
        all_of_them = sorted(os.sched_getaffinity(0))
        self._processors = all_of_them[-processors:]
        self._folder, self._iterations = folder, iterations
        self._number = 0
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_text(os.urandom(32).hex())
        config = folder / "aggregator.toml"
        config.write_text(
            f'node = "bench"\nlisten = ["tcp:{ADDRESS}"]\nkey_file = "{key}"\n'
            f'admin_socket = "{folder}/a.sock"\nkeep_s = 1\n'
        )
        self._run(stack, "aggregator", "--config", config)
        self._run(stack, "executor", "--socket", folder / "x.sock", "--admin-socket", folder / "x.admin")
        for name in ("a.sock", "x.admin"):
            _until(lambda name=name: _answers(folder / name))

    def _run(self, stack: ExitStack, *words: object) -> None:
        argv = [sys.executable, "-m", "farside", *map(str, words)]
        with (self._folder / f"{words[0]}.log").open("wb") as log:
            process = subprocess.Popen(argv, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def measure(self, rounds: int) -> dict[str, Any]:
        """All figures."""
        rate, comp_s, net_s = self._chosen_rate()
        ratios: dict[str, list[float]] = {"turns": [], "naive": [], "permits": [], "model": []}
        errors: list[float] = []
        spreads: list[float] = []
        for number in range(rounds):
            runs = self._round(number)
            apart_s = sum(_seconds(runs[f"alone {name}"]) for name in JOBS)
            for case in ("turns", "naive"):
                ratios[case].append(_seconds(runs[case]) / apart_s)
            ratios["permits"].append(_seconds(runs["alone lasso"]) / _seconds(runs["bare lasso"]))
            predicted_s, spread = self._predicted(number)
            spreads.append(spread)
            measured_s = self._iteration_s(f"turns-{number}")
            errors.append(predicted_s / measured_s - 1)
            ratios["model"].append(predicted_s * self._iterations / apart_s)
        trips_us = self._round_trips_us()
        return {
            "processors": len(self._processors),
            "rounds": rounds,
            "iterations": self._iterations,
            "rate_bytes_per_s": rate,
            "comp_s": comp_s,
            "net_s": net_s,
            "ratios": ratios,
            "prediction_errors": errors,
            "comp_spreads": spreads,
            "grant_p50_us": statistics.median(trips_us),
            "load_after": round(os.getloadavg()[0], 2),
            "tables": [_table(ratios, errors, spreads, trips_us)],
        }

    # --- cases

    def _chosen_rate(self) -> tuple[int, float, float]:
        """The rate at which a job's communication takes as long as its computing, found in two steps."""
        _shape(100_000_000)
        comp_s = net_s = 0.0
        rate = 100_000_000
        for step in range(3):
            self._case(f"warm-{step}", ("lasso",), turns=True)
            self._case(f"warm-mlr-{step}", ("mlr",), turns=True)
            jobs = [f"warm-{step}-lasso", f"warm-mlr-{step}-mlr"]
            comp_s = statistics.mean(self._step_s(job, ("COMP",)) for job in jobs)
            net_s = statistics.mean(self._step_s(job, ("PULL", "PUSH")) for job in jobs)
            if step < 2:
                rate = int(2 * PUSHED_BYTES / comp_s) if step == 0 else int(rate * net_s / comp_s)
                _shape(rate)
        return rate, comp_s, net_s

    def _round(self, number: int) -> dict[str, list[Ran]]:
        cases: list[tuple[str, tuple[str, ...], bool]] = [
            ("alone lasso", ("lasso",), True),
            ("alone mlr", ("mlr",), True),
            ("bare lasso", ("lasso",), False),
            ("turns", tuple(JOBS), True),
            ("naive", tuple(JOBS), False),
        ]
        shift = number % len(cases)
        found = {}
        for case, jobs, turns in cases[shift:] + cases[:shift]:
            found[case] = self._case(f"{case.replace(' ', '-')}-{number}", jobs, turns=turns)
        bits = {name: {ran.objective for case in found for ran in self._of(found, case, name)} for name in JOBS}
        assert all(len(one) == 1 for one in bits.values()), f"models differ: {bits}"
        return found

    @staticmethod
    def _of(found: Mapping[str, list[Ran]], case: str, name: str) -> list[Ran]:
        if case in ("turns", "naive"):
            return [found[case][list(JOBS).index(name)]]
        return found[case] if case.endswith(name) else []

    def _case(self, label: str, names: Sequence[str], *, turns: bool) -> list[Ran]:
        """Jobs that begin together."""
        with ExitStack() as stack:
            jobs = [stack.enter_context(self._started(f"{label}-{name}", name, turns=turns)) for name in names]
            for job in jobs:
                assert job.stdout is not None
                assert job.stdout.readline() == "ready\n", "a job did not start"
            for job in jobs:
                assert job.stdin is not None
                job.stdin.write("\n")
                job.stdin.flush()
            found = []
            for job in jobs:
                out, _ = job.communicate(timeout=DEADLINE_S)
                assert job.returncode == 0, f"{label} failed"
                found.append(Ran(**json.loads(out.splitlines()[-1])))
        if turns:
            self._check_trace([f"{label}-{name}" for name in names])
        return found

    @contextmanager
    def _started(self, job: str, name: str, *, turns: bool) -> Iterator["subprocess.Popen[str]"]:
        threads = str(len(self._processors))
        where = ["taskset", "--cpu-list", ",".join(map(str, self._processors))]
        variables = {
            **os.environ, SERVICE: f"tcp:{ADDRESS}", KEY_FILE: f"{self._folder}/key", JOB: job, "RANK": "0",
            "WORLD_SIZE": "1", "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads,
        }  # fmt: skip
        if turns:
            variables[EXECUTOR] = f"{self._folder}/x.sock"
        options = msgspec.structs.replace(JOBS[name], iterations=self._iterations)
        argv = [*where, sys.executable, "-m", "farside.cli.demo.colocated_job", msgspec.json.encode(options).decode()]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(argv, text=True, env=variables, **pipes) as process:  # type: ignore[call-overload]
            try:
                yield process
            finally:
                process.kill()

    # --- what the executor has seen

    def _trace(self, job: str) -> list[list[Any]]:
        rows: list[list[Any]] = []
        while more := admin.call(self._folder / "x.admin", "trace", first=len(rows))["rows"]:
            rows += more
        return [row for row in rows if row[0].partition(":")[2] == job]

    def _check_trace(self, jobs: Sequence[str]) -> None:
        """No subtask without a turn, and no two jobs that compute at once: otherwise the figures are not of turns."""
        rows = [row for job in jobs for row in self._trace(job)]
        # A job that comes or goes begins a new epoch, in which who asks is let through.
        let_through = sum(not row[6] for row in rows)
        assert let_through <= 4 * len(jobs), f"{let_through} subtasks without a turn"
        computing = sorted((row[4], row[5]) for row in rows if row[2] == "COMP" and row[6])
        overlaps = sum(later[0] < before[1] for before, later in itertools.pairwise(computing))
        assert not overlaps, f"{overlaps} times two jobs computed at once"

    def _steps_s(self, job: str, phases: Sequence[str]) -> list[float]:
        """Seconds of these phases in each iteration after the first few."""
        found: dict[int, float] = {}
        for _job, position, phase, _asked, granted_ns, done_ns, _lease in self._trace(job):
            if phase in phases and WARM_ITERATIONS <= position // 3 < self._iterations:
                found[position // 3] = found.get(position // 3, 0.0) + (done_ns - granted_ns) / 1e9
        return list(found.values())

    def _step_s(self, job: str, phases: Sequence[str]) -> float:
        return statistics.median(self._steps_s(job, phases))

    def _predicted(self, number: int) -> tuple[float, float]:
        """Equation 1's iteration of both by what each takes alone, and the spread of their computing."""
        profiles, spreads = [], []
        for name in JOBS:
            job = f"alone-{name}-{number}-{name}"
            comp = self._steps_s(job, ("COMP",))
            net_s = self._step_s(job, ("PULL", "PUSH"))
            spreads.append(statistics.stdev(comp) / statistics.mean(comp))
            profiles.append(
                WorkProfile(job=name, work_machine_s=statistics.median(comp), net_s=net_s, net_alone_s=net_s)
            )
        return group_time(profiles, 1).iteration_s, max(spreads)

    def _iteration_s(self, case: str) -> float:
        """The slowest job's iteration while both are there: from PUSH to PUSH, the median."""
        found = []
        for name in JOBS:
            ends = [row[5] for row in self._trace(f"{case}-{name}") if row[2] == "PUSH"][WARM_ITERATIONS:]
            found.append(statistics.median((b - a) / 1e9 for a, b in itertools.pairwise(ends)))
        return float(max(found))

    def _round_trips_us(self) -> list[float]:
        turns = SharedNode(f"{self._folder}/x.sock", job="trips", worker=0, workers=1)
        found = []
        for position in range(INIT_COMP, 3000):
            begun_ns = time.perf_counter_ns()
            turns.ask(position)
            found.append((time.perf_counter_ns() - begun_ns) / 1e3)
        turns.close()
        return found


def _shape(rate: int) -> None:
    words = f"tc qdisc replace dev lo root tbf rate {8 * rate}bit burst 256kb latency 50ms"
    subprocess.run(words.split(), check=True)


def _seconds(runs: Sequence[Ran]) -> float:
    return (max(ran.ended_ns for ran in runs) - min(ran.begun_ns for ran in runs)) / 1e9


def _answers(path: Path) -> bool:
    try:
        return bool(admin.call(path, "status", timeout_s=5))
    except PeerError:
        return False


def _until(look: Any) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _table(
    ratios: Mapping[str, Sequence[float]], errors: Sequence[float], spreads: Sequence[float], trips_us: Sequence[float]
) -> dict[str, Any]:
    def middle(values: Sequence[float], form: str = "{:.2f}") -> str:
        return f"{form.format(statistics.median(values))} ({form.format(min(values))} to {form.format(max(values))})"

    noisy = statistics.median(spreads) > 0.15
    gain = statistics.median(ratios["turns"])
    naive = statistics.median(ratios["naive"])
    permits = statistics.median(ratios["permits"])
    error = abs(statistics.median(errors))

    def met(is_met: bool) -> str:
        return "too noisy" if noisy else "yes" if is_met else "no"

    trip_us = statistics.median(trips_us)
    bar = "at most 0.75, and naive + 0.02"
    rows = [
        ["both with turns", middle(ratios["turns"]), bar, met(gain <= min(0.75, naive + 0.02))],
        ["both without turns", middle(ratios["naive"]), "-", "-"],
        ["both, by equation 1", middle(ratios["model"]), "-", "-"],
        ["prediction's error", middle([100 * one for one in errors], "{:.1f} %"), "at most 5 %", met(error <= 0.05)],
        ["one job with turns, to without", middle(ratios["permits"], "{:.3f}"), "at most 1.02", met(permits <= 1.02)],
        ["time from asking to a turn", f"{trip_us:.0f} us", "below 500 us", met(trip_us < 500)],
        ["spread of computing", middle([100 * one for one in spreads], "{:.0f} %"), "at most 15 %", met(not noisy)],
    ]
    return {"header": ["what", "figure", "bar", "met"], "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
