"""``python -m benchmarks.colocation``: two real jobs on one node with turns, without, and one after the other.

Both jobs have an Aggregator, by TCP over the loopback of a network namespace of its own, on which tc's token bucket
sets the rate: PULL and PUSH of both meet on it, as on a machine's one link. The rate is chosen so that a job alone
communicates as long as it computes. Cases take turns in each round; a ratio is one within a round; the median is
printed with the least and the most. Needs root. Where computing alone spreads by over 15 %, no bar is judged.

A prediction is what a manager decides by: what an executor knows of each job when it has run alone goes the way that it
goes from there to the manager's group. It is compared with windows of 10 iterations of the slowest job, and judged by
those in which computing spreads by less than 10 %, if there are nine. Each job runs alone shortly before and shortly
after both in turns, since a machine becomes faster or slower with what its host does.

``python -m benchmarks.colocation spill``: jobs whose input does not fit in memory (`colocation_spill.py`).
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.result import Machine
from farside import admin
from farside.agent.messages import TurnTaker
from farside.agent.service.executor import taker_of
from farside.agent.training.subtask import INIT_COMP
from farside.agent.training.turn_record import job_record
from farside.cli.demo.colocated_node import Ran
from farside.errors import PeerError
from farside.kmod_shim.process_time import processor_time_ns
from farside.scheduler.manager.colocation.news import state_of
from farside.training.app.program import Options
from farside.training.loop.turns import EXECUTOR, SharedNode
from farside.training.static_plan import JOB, KEY_FILE, SERVICE

RESULTS = Path(__file__).parent / "results" / "colocation.json"
INSIDE = "FARSIDE_BENCH_NAMESPACE"
DEADLINE_S = 300.0
AGGREGATOR_PORT = 7683
ADDRESS = f"127.0.0.1:{AGGREGATOR_PORT}"
COLUMNS = 100_000
JOBS = {
    "lasso": Options(app="lasso", data="synthetic", rows=640, columns=2 * COLUMNS, blocks=8, penalty=0.1),
    "mlr": Options(app="mlr", data="synthetic", rows=640, columns=COLUMNS // 5, classes=10, blocks=8),
}
"""The two jobs: each pushes 1.6 MB of sums; its rows set how long an iteration computes.

So long that what a machine does besides, for some milliseconds at a time, spreads that by less than 10 %.
"""
PUSHED_BYTES = 8 * 2 * COLUMNS
WARM_ITERATIONS = 5
WINDOW = 10
"""Iterations that a prediction is compared with at a time."""
SPREAD_MAX, SPREAD_OF_PREDICTION = 0.15, 0.10
"""Where computing alone spreads by more than the first, no bar is judged; a window in which it spreads by less than the
second judges the prediction."""
WINDOWS_OF_PREDICTION = 9
"""Such windows that are enough."""
PAIRS = ("", "2", "3")
"""How often one job runs alone with turns and without in each round: what turns cost it is less than runs differ by."""
AROUND = PAIRS[:2]
"""The pairs before and after both run in turns, by which that run is predicted."""


def arguments(description: str, output: Path, *, has_processors: bool = False) -> argparse.Namespace:
    """What is asked for: rounds, iterations, the file for the figures."""
    words = argparse.ArgumentParser(description=description)
    words.add_argument("--rounds", type=int, default=5, help="How often each case is measured")
    words.add_argument("--iterations", type=int, default=40, help="Iterations of each job")
    if has_processors:
        told = "Processors of jobs, and threads; services have the others; 0: all"
        words.add_argument("--processors", type=int, default=0, help=told)
    words.add_argument("--output", type=Path, default=output, help="File for the figures, JSON")
    return words.parse_args()


def main() -> int:
    """Measures what is asked for, and writes it."""
    if sys.argv[1:2] == ["spill"]:
        from benchmarks.colocation_spill import main as spill

        return spill(sys.argv[2:])
    asked = arguments("Jobs that take turns on a node, measured.", RESULTS, has_processors=True)
    if os.geteuid() != 0:
        print(
            "farside: a shaped link needs a network namespace, and that needs root; nothing is measured",
            file=sys.stderr,
        )
        return 2
    in_namespace()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # workers end, too
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="farside-colo-") as folder, ExitStack() as stack:
        processors = sorted(os.sched_getaffinity(0))[-asked.processors :]
        bench = Bench(Path(folder), stack, iterations=asked.iterations, processors=processors)
        write(asked.output, "benchmarks.colocation", machine, bench.measure(asked.rounds))
    return 0


def in_namespace() -> None:
    """Returns in a network namespace of its own, in which this command begins anew as the same process."""
    if not os.environ.get(INSIDE):
        argv = ["unshare", "-n", sys.executable, "-m", "benchmarks.colocation", *sys.argv[1:]]
        os.execvpe(argv[0], argv, {**os.environ, INSIDE: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def write(output: Path, module: str, machine: Machine, found: dict[str, Any]) -> None:
    """Writes figures into their file, and prints their tables."""
    head = {"command": this_command(module), "machine": msgspec.to_builtins(machine)}
    record = {**head, "commit": this_commit(), **found}
    output.write_text(json.dumps(record, indent=1) + "\n")
    for table in found["tables"]:
        print("\n" + " | ".join(table["header"]))
        for row in table["rows"]:
            print(" | ".join(row))


class Link:
    """The loopback, whose rate is set."""

    def shape(self, rate: int) -> None:
        """What it carries, in bytes a second."""
        self._set(["tc"], "lo", rate)

    @staticmethod
    def _set(tc: Sequence[str], device: str, rate: int) -> None:
        words = f"qdisc replace dev {device} root tbf rate {8 * rate}bit burst 256kb latency 50ms"
        subprocess.run([*tc, *words.split()], check=True)


class Bench:
    """An Aggregator, an executor, and jobs that are started anew for each case."""

    machines = 1
    """Nodes on which each job has a worker."""

    def __init__(self, folder: Path, stack: ExitStack, *, iterations: int, processors: Sequence[int]) -> None:
        self._processors = processors
        self._folder, self._iterations = folder, iterations
        self._link = Link()
        self._key = folder / "key"
        self._key.touch(mode=0o600)
        self._key.write_text(os.urandom(32).hex())
        self._start_services(stack)

    def _start_services(self, stack: ExitStack) -> None:
        config = self._folder / "aggregator.toml"
        config.write_text(
            f'node = "bench"\nlisten = ["tcp:{ADDRESS}"]\nkey_file = "{self._key}"\n'
            f'admin_socket = "{self._folder}/a.sock"\nkeep_s = 1\n'
        )
        services = (
            ("aggregator", "--config", config),
            ("executor", "--socket", self._executor, "--admin-socket", self._shown_by),
        )
        for words in services:
            argv = [*self._apart(), sys.executable, "-m", "farside", *map(str, words)]
            started(stack, argv, self._folder / f"{words[0]}.log")
        for path in (self._folder / "a.sock", self._shown_by):
            until_answers(path)

    @property
    def _shown_by(self) -> Path:
        """Admin socket of the executor whose trace is judged."""
        return self._folder / "x.admin"

    @property
    def _executor(self) -> Path:
        return self._folder / "x.sock"

    def _apart(self) -> list[str]:
        """The words that begin the command of a service: it has the processors that jobs do not have, if any."""
        others = sorted(os.sched_getaffinity(0) - set(self._processors))
        return ["taskset", "--cpu-list", ",".join(map(str, others))] if others else []

    def measure(self, rounds: int) -> dict[str, Any]:
        """All figures."""
        rate, comp_s, net_s = self._chosen_rate()
        ratios: dict[str, list[float]] = {"turns": [], "naive": [], "permits": [], "model": []}
        windows: list[tuple[float, float, float]] = []
        spreads: list[float] = []
        spent: dict[str, list[float]] = {"jobs": []}
        for number in range(rounds):
            runs = self._round(number, spent)
            apart_s = statistics.mean(sum(_seconds(runs[f"alone{at} {name}"]) for name in JOBS) for at in AROUND)
            for case in ("turns", "naive"):
                ratios[case].append(_seconds(runs[case]) / apart_s)
            for pair in PAIRS:
                ratios["permits"].append(_seconds(runs[f"alone{pair} lasso"]) / _seconds(runs[f"bare{pair} lasso"]))
            known = [self._known(f"alone{at}", number) for at in AROUND]
            spreads.append(self._spread(number))
            spent["jobs"].append(statistics.mean(map(_rest_s, known)))
            whole_s = statistics.mean(predicted_s(takers, self.machines) for takers in known)
            without = [[replace(one, processor=None) for one in takers] for takers in known]
            without_s = statistics.mean(predicted_s(takers, self.machines) for takers in without)
            for measured_s, spread in self._windows(f"turns-{number}"):
                windows.append((spread, whole_s / measured_s - 1, without_s / measured_s - 1))
            ratios["model"].append(whole_s * self._iterations / apart_s)
        trips_us = self._round_trips_us()
        return {
            "processors": len(self._processors),
            "rounds": rounds,
            "iterations": self._iterations,
            "rate_bytes_per_s": rate,
            "comp_s": comp_s,
            "net_s": net_s,
            "ratios": ratios,
            "windows": [
                {"comp_spread": at, "error": whole, "error_without_updates": without} for at, whole, without in windows
            ],
            "comp_spreads": spreads,
            "cpu_s_an_iteration": spent,
            "grant_p50_us": statistics.median(trips_us),
            "load_after": round(os.getloadavg()[0], 2),
            "tables": [_table(ratios, windows, spreads, trips_us, spent)],
        }

    # --- cases

    def _chosen_rate(self) -> tuple[int, float, float]:
        """The rate at which a job's communication takes as long as its computing, found in two steps."""
        self._link.shape(100_000_000)
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
                self._link.shape(rate)
        return rate, comp_s, net_s

    def _round(self, number: int, spent: dict[str, list[float]]) -> dict[str, list[Ran]]:
        """All cases once; adds what services took of the processors, an iteration of both in turns."""
        both = tuple(JOBS)
        cases: list[tuple[str, tuple[str, ...], bool]] = [
            ("bare lasso", ("lasso",), False),
            ("alone lasso", ("lasso",), True),
            ("alone mlr", ("mlr",), True),
            ("turns", both, True),
            ("alone2 mlr", ("mlr",), True),
            ("alone2 lasso", ("lasso",), True),
            ("bare2 lasso", ("lasso",), False),
            ("naive", both, False),
            ("bare3 lasso", ("lasso",), False),
            ("alone3 lasso", ("lasso",), True),
        ]
        if number % 2:
            cases.reverse()
        found = {}
        for case, jobs, turns in cases:
            before_s = self._services_s()
            found[case] = self._case(f"{case.replace(' ', '-')}-{number}", jobs, turns=turns)
            if case == "turns":
                for name, now_s in self._services_s().items():
                    spent.setdefault(name, []).append((now_s - before_s[name]) / self._iterations)
        bits = {name: {ran.model for case in found for ran in self._of(found, case, name)} for name in JOBS}
        assert all(len(one) == 1 for one in bits.values()), f"models differ: {bits}"
        return found

    @staticmethod
    def _of(found: Mapping[str, list[Ran]], case: str, name: str) -> list[Ran]:
        if case in ("turns", "naive"):
            return [found[case][list(JOBS).index(name)]]
        return found[case] if case.endswith(name) else []

    def _services(self) -> Mapping[str, Sequence[Path]]:
        """Admin sockets of what serves the jobs."""
        return {"Aggregator": [self._folder / "a.sock"], "executor": [self._shown_by]}

    def _services_s(self) -> dict[str, float]:
        """Processor time that each has had until now, on all nodes."""
        pids = {name: [admin.call(at, "status")["pid"] for at in all_] for name, all_ in self._services().items()}
        return {name: sum((processor_time_ns(pid) or 0) / 1e9 for pid in all_) for name, all_ in pids.items()}

    def _case(self, label: str, names: Sequence[str], *, turns: bool) -> list[Ran]:
        """Jobs that begin together: of each, when its first worker began and its last one ended."""
        with ExitStack() as stack:
            by_job = [self._started(stack, f"{label}-{name}", name, turns=turns) for name in names]
            jobs = [worker for workers in by_job for worker in workers]
            for job in jobs:
                assert job.stdout is not None
                assert job.stdout.readline() == "ready\n", "a job did not start"
            for job in jobs:
                assert job.stdin is not None
                job.stdin.write("\n")
                job.stdin.flush()
            found = [_together([_ran(label, worker) for worker in workers]) for workers in by_job]
        if turns:
            self._check_trace([f"{label}-{name}" for name in names])
        return found

    def _started(self, stack: ExitStack, job: str, name: str, *, turns: bool) -> "list[subprocess.Popen[str]]":
        program, more = self._program(name)
        found = []
        for where, variables in self._workers(turns=turns):
            process = subprocess.Popen(
                [*where, *program], text=True, env={**os.environ, JOB: job, **variables, **more}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            found.append(process)
        return found

    def _program(self, name: str) -> tuple[list[str], Mapping[str, str]]:
        """The words of a job's worker, and its variables."""
        options = msgspec.structs.replace(JOBS[name], iterations=self._iterations)
        return [sys.executable, "-m", "farside.cli.demo.colocated_job", msgspec.json.encode(options).decode()], {}

    def _workers(self, *, turns: bool) -> Iterator[tuple[list[str], Mapping[str, str]]]:
        """The words that begin the command of each worker of a job, and its variables."""
        threads = str(len(self._processors))
        variables = {
            SERVICE: f"tcp:{ADDRESS}", KEY_FILE: str(self._key), "RANK": "0", "WORLD_SIZE": "1",
            "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads,
        }  # fmt: skip
        if turns:
            variables[EXECUTOR] = str(self._executor)
        yield ["taskset", "--cpu-list", ",".join(map(str, self._processors))], variables

    # --- what the executor has seen

    def _trace(self, job: str) -> list[list[Any]]:
        rows: list[list[Any]] = []
        while more := admin.call(self._shown_by, "trace", first=len(rows))["rows"]:
            rows += more
        return [row for row in rows if row[0].partition(":")[2] == job]

    def _check_trace(self, jobs: Sequence[str]) -> None:
        """No subtask without a turn, and no two jobs that compute at once: otherwise the figures are not of turns."""
        rows = [row for job in jobs for row in self._trace(job)]
        check_turns(rows, len(jobs))
        computing = sorted((row[4], row[5]) for row in rows if row[2] == "COMP" and row[6])
        overlaps = sum(later[0] < before[1] for before, later in itertools.pairwise(computing))
        assert not overlaps, f"{overlaps} times two jobs computed at once"

    def _steps_s(self, job: str, phases: Sequence[str]) -> list[float]:
        """Seconds of these phases in each iteration after the first few."""
        found: dict[int, float] = {}
        for _job, position, phase, _asked, granted_ns, done_ns, *_ in self._trace(job):
            if phase in phases and WARM_ITERATIONS <= position // 3 < self._iterations:
                found[position // 3] = found.get(position // 3, 0.0) + (done_ns - granted_ns) / 1e9
        return list(found.values())

    def _step_s(self, job: str, phases: Sequence[str]) -> float:
        return statistics.median(self._steps_s(job, phases))

    def _known(self, case: str, number: int) -> list[TurnTaker]:
        """What a manager would be told of each job when it had run alone in this case."""
        return [
            taker_of((name, 0, 1), job_record(self._trace(f"{case}-{name}-{number}-{name}")).status) for name in JOBS
        ]

    def _spread(self, number: int) -> float:
        """That of the computing of the job whose computing spreads more when it runs alone."""
        runs = [[self._steps_s(f"alone{at}-{name}-{number}-{name}", ("COMP",)) for at in AROUND] for name in JOBS]
        return max(statistics.mean(map(spread_of, one)) for one in runs)

    def _windows(self, case: str) -> Iterator[tuple[float, float]]:
        """Windows while both jobs are there, as `windows_of` has them: seconds of an iteration, spread of computing."""
        rows = {name: self._trace(f"{case}-{name}") for name in JOBS}
        ends = {name: [row[5] for row in found if row[2] == "PUSH"][WARM_ITERATIONS:] for name, found in rows.items()}
        for begun_ns, ended_ns in windows_of(ends):
            computing = [
                [(row[5] - row[4]) / 1e9 for row in found if row[2] == "COMP" and begun_ns <= row[5] <= ended_ns]
                for found in rows.values()
            ]
            yield (ended_ns - begun_ns) / WINDOW / 1e9, max(map(spread_of, computing))

    def _round_trips_us(self) -> list[float]:
        turns = SharedNode(str(self._executor), job="trips", worker=0, workers=1)
        found = []
        for position in range(INIT_COMP, 3000):
            begun_ns = time.perf_counter_ns()
            turns.ask(position)
            found.append((time.perf_counter_ns() - begun_ns) / 1e3)
        turns.close()
        return found


def predicted_s(takers: Sequence[TurnTaker], machines: int) -> float:
    """An iteration of jobs in turns, as a manager decides by that is told this of each of them."""
    found = state_of(takers, machines).time_of([one.job for one in takers], machines)
    assert found is not None, "a job was not measured"
    return found.iteration_s


def spread_of(times_s: Sequence[float]) -> float:
    """Standard deviation of two times or more, as a part of their mean."""
    return statistics.stdev(times_s) / statistics.mean(times_s)


def windows_of(ends_ns: Mapping[str, Sequence[int]], size: int = WINDOW) -> list[tuple[int, int]]:
    """When equal numbers of iterations of the slowest job began and were over, one window after the other.

    Args:
        ends_ns: By job, when its iterations were over. What comes after the last one of any job is left out.
        size: Iterations of a window.
    """
    until_ns = min(ends[-1] for ends in ends_ns.values())
    whole = [[end_ns for end_ns in ends if end_ns <= until_ns][::size] for ends in ends_ns.values()]
    each = [list(itertools.pairwise(ends)) for ends in whole]
    return [max(one, key=lambda window: window[1] - window[0]) for one in zip(*each, strict=False)]


def check_turns(rows: Sequence[Sequence[Any]], jobs: int) -> None:
    """No subtask without a turn; a job that comes or goes begins a new epoch, in which who asks is let through."""
    let_through = sum(not row[6] for row in rows)
    assert let_through <= 4 * jobs, f"{let_through} subtasks without a turn"


def started(stack: ExitStack, argv: Sequence[str], log: Path) -> None:
    """A service that ends with the stack."""
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stderr=file)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def _ran(label: str, worker: "subprocess.Popen[str]") -> Ran:
    out, _ = worker.communicate(timeout=DEADLINE_S)
    assert worker.returncode == 0, f"{label} failed"
    return Ran(**json.loads(out.splitlines()[-1]))


def _together(workers: Sequence[Ran]) -> Ran:
    assert len({(one.objective, one.model) for one in workers}) == 1, "workers of one job differ"
    begun_ns, ended_ns = min(one.begun_ns for one in workers), max(one.ended_ns for one in workers)
    return Ran(begun_ns=begun_ns, ended_ns=ended_ns, objective=workers[0].objective, model=workers[0].model)


def _rest_s(takers: Sequence[TurnTaker]) -> float:
    return sum(one.processor.rest_s for one in takers if one.processor is not None)


def _seconds(runs: Sequence[Ran]) -> float:
    return (max(ran.ended_ns for ran in runs) - min(ran.begun_ns for ran in runs)) / 1e9


def until_answers(path: Path, is_so: Callable[[Any], bool] = lambda _told: True) -> None:
    """Returns once a service answers at its admin socket, with a status that is so."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        with suppress(PeerError):
            if is_so(admin.call(path, "status", timeout_s=5)):
                return
        assert time.monotonic() < deadline_s, path
        time.sleep(0.05)


def _table(
    ratios: Mapping[str, Sequence[float]],
    windows: Sequence[tuple[float, float, float]],
    spreads: Sequence[float],
    trips_us: Sequence[float],
    spent: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    def middle(values: Sequence[float], form: str = "{:.2f}") -> str:
        return f"{form.format(statistics.median(values))} ({form.format(min(values))} to {form.format(max(values))})"

    judged = calm(windows)

    def size(values: Sequence[float]) -> str:
        return f"{100 * median_size(values):.1f} % ({100 * min(values):.1f} % to {100 * max(values):.1f} %)"

    spread = statistics.median(spreads)
    gain = statistics.median(ratios["turns"])
    naive = statistics.median(ratios["naive"])
    permits = statistics.median(ratios["permits"])

    def met(is_met: bool, *, is_noisy: bool = spread > SPREAD_MAX) -> str:
        return "too noisy" if is_noisy else "yes" if is_met else "no"

    trip_us = statistics.median(trips_us)
    is_calm = len(judged) >= WINDOWS_OF_PREDICTION
    _, errors, without = zip(*(judged if is_calm else windows), strict=True)
    is_right = met(median_size(errors) <= 0.05, is_noisy=not is_calm)
    is_gain = met(gain <= min(0.75, naive + 0.02))
    times = ", ".join(f"{1000 * statistics.median(values):.1f}" for values in spent.values())
    rows = [
        ["both with turns", middle(ratios["turns"]), "at most 0.75, and naive + 0.02", is_gain],
        ["both without turns", middle(ratios["naive"]), "-", "-"],
        ["both, as predicted", middle(ratios["model"]), "-", "-"],
        ["prediction's error, its size", size(errors), "at most 5 %", is_right],
        ["the same without what updates take", size(without), "-", "-"],
        ["one job with turns, to without", middle(ratios["permits"], "{:.3f}"), "at most 1.02", met(permits <= 1.02)],
        ["time from asking to a turn", f"{trip_us:.0f} us", "below 500 us", met(trip_us < 500)],
        [f"CPU for updates: {', '.join(spent)}", f"{times} ms", "-", "-"],
        [
            "spread of computing", middle([100 * one for one in spreads], "{:.0f} %"),
            "at most 15 %", "yes" if spread <= SPREAD_MAX else "no",
        ],
        [
            "windows that judge the prediction: it spreads by less than 10 %", f"{len(judged)} of {len(windows)}",
            f"at least {WINDOWS_OF_PREDICTION}", "yes" if is_calm else "no",
        ],
    ]  # fmt: skip
    return {"header": ["what", "figure", "bar", "met"], "rows": rows}


def calm(windows: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The windows in which computing, which is their first figure, spreads little enough to judge a prediction."""
    return [one for one in windows if one[0] < SPREAD_OF_PREDICTION]


def median_size(errors: Sequence[float]) -> float:
    """How far off half of them are at most, to either side."""
    return statistics.median(map(abs, errors))


if __name__ == "__main__":
    sys.exit(main())
