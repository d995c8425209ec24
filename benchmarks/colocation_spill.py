"""``python -m benchmarks.colocation spill``: jobs in turns whose input does not fit in memory; 1 if a bar is not met.

`memory`: two jobs on one node, each with memory for half of its input by a limit of the kernel, beside the same jobs
without a limit; without spilling each is killed. `chooser-`: a disk whose reads the kernel holds down to 50 MB/s
(``blkio.throttle.read_bps_device``, ``io.max``), and Farside's donor by TCP over the link on which updates are, too;
what the executor chooses beside the disk alone and the peer alone, in a group that computes most and in one that
communicates most. `climb`: on that disk, from all input on the disk, what hill climbing has found after 15 windows
beside fixed shares. `death`: the donor is killed in the middle. Cases take turns in each round, a ratio is one within a
round, and medians are printed with the least and the most. As root, with a limit on memory and on reads; what the
machine lacks is said, and that part left out.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.colocation import in_namespace
from benchmarks.colocation_spill_bench import Play, Played, SpillBench, write_input
from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.serving.machine_noise import Snapshot, noise, snapshot
from farside.agent.training.alpha import DROPPED, WINDOW
from farside.agent.training.turn_record import DROPPED_ITERATIONS
from farside.errors import Unavailable
from farside.training.app.program import Options
from tests.support.kernel_limit import MemoryLimit, ReadLimit

RESULTS = Path(__file__).parent / "results" / "colocation_spill.json"
PROGRAM_BYTES = 80 << 20
"""What a job needs besides its input: Python, NumPy, and the buffers of blocks that come back."""
DISK_BYTES_S = 50_000_000
WINDOWS = 15
MAKESPAN_MOST, NEAR_MOST, SPREAD_MOST = 1.3, 1.05, 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured: iterations of each case, of which the last are judged, and rows of input.

    ``judged_short``: of a job alone with nearly all in memory, whose iterations are so short that more are needed.
    """

    memory_rows: int = 8192
    memory: int = 30
    fixed: int = 16
    chooser: int = 44
    climb: int = WINDOWS * (WINDOW + DROPPED)
    judged: int = 10
    judged_short: int = 60
    death: int = 160


QUICK = Effort(memory_rows=4096, memory=10, fixed=10, chooser=30, judged=4, judged_short=8, death=80)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a table: what was measured, and whether it is met.

    Attributes:
        what: In words.
        values: One a round.
        most: What the median may be at most; None: it is shown alone.
        form: Of a number.
        spread: Of computing, as a share; over 15 % nothing is judged that was timed.
    """

    what: str
    values: Sequence[float]
    most: float | None = None
    form: str = "{:.2f}"
    spread: float = 0.0

    @property
    def met(self) -> str:
        """yes, no, too noisy, or - where nothing is to be reached."""
        if self.most is None:
            return "-"
        if self.spread > SPREAD_MOST:
            return "too noisy"
        return "yes" if statistics.median(self.values) <= self.most else "no"

    @property
    def row(self) -> list[str]:
        """The cells."""
        values = [self.form.format(value) for value in (statistics.median(self.values), *_ends(self.values))]
        figure = values[0] if len(self.values) == 1 else f"{values[0]} ({values[1]} to {values[2]})"
        bar = "-" if self.most is None else f"at most {self.most:g}"
        return [self.what, figure, bar, self.met]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


Part = Callable[[SpillBench, Effort, int], tuple[list[Bar], dict[str, Any]]]


def main(words: Sequence[str]) -> int:
    """Measures what is asked for, and writes it; 1 if a bar is missed, or was not judged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.colocation spill", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which of: {', '.join(PARTS)}; else all")
    parser.add_argument("--rounds", type=int, default=5, help="how often each case is measured; default: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="threads of a job; 0: all processors but one")
    parser.add_argument("--quick", action="store_true", help="one round of fewer iterations; keeps nothing")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file for the figures, JSON")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.parts if name not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    if os.geteuid() != 0:
        print("farside: a shaped link and limits on memory need root; nothing is measured", file=sys.stderr)
        return 2
    in_namespace()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started is ended
    effort, rounds = (QUICK, 1) if asked.quick else (Effort(), asked.rounds)
    found: dict[str, list[str]] = {"missed": [], "not judged": []}
    for name in asked.parts or PARTS:
        try:
            record, bars = measured(name, effort, rounds, asked.threads)
        except Unavailable as error:
            found["not judged"].append(f"{name}: left out: {error}")
            continue
        found["missed"] += [f"{name}: {' | '.join(bar.row)}" for bar in bars if bar.met == "no"]
        found["not judged"] += [f"{name}: {' | '.join(bar.row)}" for bar in bars if bar.met == "too noisy"]
        if not asked.quick:
            _keep(name, record, asked.output)
    return told(found)


def told(found: Mapping[str, Sequence[str]]) -> int:
    """Prints the lines under each title; the exit code, which is 0 where there are none."""
    for title, lines in found.items():
        if lines:
            print("\n".join([f"{title}:", *lines]))
    if any(found.values()):
        return 1
    print("no bar is missed")
    return 0


def measured(name: str, effort: Effort, rounds: int, threads: int = 0) -> tuple[dict[str, Any], list[Bar]]:
    """A part's record, and its bars.

    Raises:
        Unavailable: The machine can't do it.
    """
    machine, began, own_s = this_machine(), snapshot(), _own_s()
    with tempfile.TemporaryDirectory(prefix="farside-spill-") as folder, ExitStack() as stack:
        processors = sorted(os.sched_getaffinity(0))
        bench = SpillBench(
            Path(folder), stack, processors=processors, threads=threads or threads_of_a_job(len(processors))
        )  # fmt: skip
        bars, more = PARTS[name](bench, effort, rounds)
    header, rows = ["what", "figure", "bar", "met"], [bar.row for bar in bars]
    record = {
        "command": this_command("benchmarks.colocation"), "commit": this_commit(),
        "machine": msgspec.to_builtins(machine), "rounds": rounds, "threads": bench.threads,
        "took_s": round(snapshot().at_s - began.at_s),
        **_others(began, snapshot(), _own_s() - own_s), **more, "tables": [{"header": header, "rows": rows}],
    }  # fmt: skip
    print(f"\n{name}, {record['took_s']} s; of the processors others had {record['others_pct']} %, "
          f"the host {record['stolen_pct']} %")  # fmt: skip
    for row in (header, *rows):
        print(" | ".join(row), flush=True)
    return record, bars


def threads_of_a_job(processors: int) -> int:
    """All processors but one, which is for readers of blocks, Aggregator, executor and the link; at least one.

    Threads of a matrix product wait for each other hundreds of times a second, so that with a thread on each processor
    whoever else runs for a moment stops all of them, and computing takes twice as long or not, by chance.
    """
    return max(1, processors - 1)


def _own_s() -> float:
    """CPU time of this process, and of all processes that it has waited for."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def _others(before: Snapshot, after: Snapshot, own_s: float) -> dict[str, int]:
    found = noise(before, after, own_s)
    return {"others_pct": round(100 * found.foreign), "stolen_pct": round(100 * found.steal)}


def _keep(part: str, record: Mapping[str, Any], output: Path) -> None:
    """Writes the file; parts that were not measured stay as they are."""
    known: dict[str, Any] = json.loads(output.read_bytes()) if output.exists() else {"parts": {}}
    known["parts"][part] = record
    output.write_text(json.dumps(known, indent=1) + "\n")


# --- memory


def measure_memory(bench: SpillBench, effort: Effort, rounds: int) -> tuple[list[Bar], dict[str, Any]]:
    """Two jobs, each with memory for half of its input."""
    rows, columns = effort.memory_rows, 2000
    drawn = {
        "mlr": Options(app="mlr", data="synthetic", rows=rows, columns=columns - 1, classes=32, blocks=rows // 256),
        "nmf": Options(app="nmf", data="synthetic", rows=rows, columns=columns, components=24, blocks=rows // 256),
    }
    input_bytes = 8 * rows * columns
    limits = {name: bench.limit(MemoryLimit, input_bytes // 2 + PROGRAM_BYTES, name) for name in drawn}
    free = {
        name: Play(options=write_input(options, bench.folder / f"{name}.npy"), iterations=effort.memory)
        for name, options in drawn.items()
    }
    limited = {name: replace(play, enter=limits[name].enter) for name, play in free.items()}
    short = {name: replace(play, iterations=6) for name, play in free.items()}
    rate = bench.calibrate("warm", short, 8 * columns * (32 + 24) / 2, 1.0)
    ratios, iterations, spreads, cases = list[float](), list[float](), list[float](), dict[str, Played]()
    overlaps: list[int] = []
    for number in range(rounds):
        for case, plays in _in_turn({"free": free, "limited": limited}, number):
            cases[case] = bench.play(f"{case}-{number}", plays)
        assert cases["free"].models == cases["limited"].models, "models differ"
        ratios.append(cases["limited"].makespan_s / cases["free"].makespan_s)
        last = effort.memory // 2
        iterations.append(cases["limited"].iteration_s(last) / cases["free"].iteration_s(last))
        spreads.append(cases["free"].spread(DROPPED_ITERATIONS))
        overlaps.append(sum(one.overlaps for one in cases.values()))
    kills = sum(limit.kills for limit in limits.values())
    unspilled = bench.limit(MemoryLimit, input_bytes // 2 + PROGRAM_BYTES, "unspilled")
    survivors = [
        name for name, play in free.items()
        if bench.ends_early(replace(play, enter=unspilled.enter, spills=False)) != -9
    ]  # fmt: skip
    spread = statistics.median(spreads)
    bars = [
        Bar(what="makespan with memory for half, to without a limit", values=ratios, most=MAKESPAN_MOST, spread=spread),
        Bar(what="an iteration, likewise", values=iterations),
        Bar(what="processes killed for memory", values=[kills], most=0, form="{:.0f}"),
        Bar(what="jobs that were not killed without spilling", values=[len(survivors)], most=0, form="{:.0f}"),
        Bar(what="times two jobs computed at once", values=overlaps, form="{:.0f}"),
        Bar(what="spread of computing", values=spreads, form="{:.0%}"),
    ]
    return bars, {
        "rate_bytes_per_s": rate, "input_bytes": input_bytes, "limit_bytes": input_bytes // 2 + PROGRAM_BYTES,
        "ratios": ratios, "iteration_ratios": iterations, **_told(cases),
    }  # fmt: skip


def _in_turn(cases: Mapping[str, Any], number: int) -> list[tuple[str, Any]]:
    """The cases of a round, each time another one first."""
    listed = list(cases.items())
    shift = number % len(listed)
    return listed[shift:] + listed[:shift]


def _told(cases: Mapping[str, Played]) -> dict[str, Any]:
    """What jobs computed, were on the network, read and waited in the last round."""
    return {
        "last_round": {
            case: {
                "makespan_s": round(one.makespan_s, 3),
                "reports": {
                    job: {what: value for what, value in report.items() if what != "iterations"}
                    for job, report in one.reports.items()
                },
                "comp_s": {job: round(one.computed_s(job, 2), 4) for job in one.comp_s},
            }
            for case, one in cases.items()
        }
    }  # fmt: skip


def _worst(ratios: Sequence[float], played: Sequence[Played]) -> dict[str, Any]:
    """Each job's iterations in the round with the greatest ratio, as `benchmarks.colocation_spill_job` says them."""
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    return {"worst_round": {job: report["iterations"] for job, report in played[worst].reports.items()}}


# --- a slow disk, and a peer

_COLUMNS, _CLASSES = 2000, 64


def _jobs(rows: int = 2048) -> dict[str, Options]:
    """Two jobs of 32 MB of input, in blocks of 1 MB, and 1 MB of sums."""
    made = Options(app="mlr", data="synthetic", rows=rows, columns=_COLUMNS, classes=_CLASSES, blocks=rows // 64)
    return {"one": made, "two": msgspec.structs.replace(made, seed=1)}


_PUSHED_BYTES = 8 * _COLUMNS * _CLASSES


def measure_chooser(
    bench: SpillBench, effort: Effort, rounds: int, *, ratio: float, slow: int | None = None
) -> tuple[list[Bar], dict[str, Any]]:
    """The disk alone, the peer alone, and what the executor chooses; half of the input is out of memory throughout.

    Args:
        bench: What it is measured with.
        effort: How much.
        rounds: How often.
        ratio: A job is on the network so many times as long as it computes.
        slow: Iterations with the peer alone, where the link is slow; None: as many as with the disk.
    """
    slow_disk = bench.limit(ReadLimit, bench.folder, DISK_BYTES_S)
    bench.start_donor()
    plain = {name: Play(options=options, iterations=6) for name, options in _jobs().items()}

    def plays(iterations: int, *, has_peer: bool, **fixed: float) -> dict[str, Play]:
        held = {"spilled": 0.5, **fixed}
        return {
            name: replace(one, iterations=iterations, enter=slow_disk.enter, has_peer=has_peer, fixed=held)
            for name, one in plain.items()
        }

    rate = bench.calibrate("warm", plain, _PUSHED_BYTES, ratio)
    by_peer = slow or effort.fixed + effort.judged  # its device takes some iterations until it is there
    ways = {
        "disk": (plays(effort.fixed, has_peer=False), effort.judged),
        "peer": (plays(by_peer, has_peer=True, by_peer=1.0), min(effort.judged, by_peer - 3)),
        "chosen": (plays(effort.chooser, has_peer=True), effort.judged),
    }
    took: dict[str, list[float]] = {way: [] for way in ways}
    cases, ratios, chosen = dict[str, Played](), list[float](), list[Played]()
    for number in range(rounds):
        for way, (jobs, last) in _in_turn(ways, number):
            cases[way] = bench.play(f"{way}-{number}", jobs)
            took[way].append(cases[way].iteration_s(last))
        ratios.append(took["chosen"][-1] / min(took["disk"][-1], took["peer"][-1]))
        chosen.append(cases["chosen"])
    bars = [
        Bar(what="the disk alone, seconds an iteration", values=took["disk"]),
        Bar(what="the peer alone", values=took["peer"]),
        Bar(what="as chosen", values=took["chosen"]),
        Bar(what="as chosen, to the better one", values=ratios, most=NEAR_MOST),
    ]
    more = {**_worst(ratios, chosen), **_told(cases)}
    return bars, {"rate_bytes_per_s": rate, "iteration_s": took, "ratios": ratios, **more}


def measure_climb(bench: SpillBench, effort: Effort, rounds: int) -> tuple[list[Bar], dict[str, Any]]:
    """From all input on a slow disk, what is found after 15 windows, beside shares that are held."""
    slow_disk = bench.limit(ReadLimit, bench.folder, DISK_BYTES_S)
    options = _jobs()["one"]
    plain = {"one": Play(options=options, iterations=6)}
    rate = bench.calibrate("warm", plain, _PUSHED_BYTES, 0.25)
    input_bytes = 8 * options.rows * options.columns
    limit = bench.limit(MemoryLimit, input_bytes // 2 + PROGRAM_BYTES, "climb")
    both = slow_disk.enter + limit.enter
    begun = bench.play("least", {"one": replace(plain["one"], iterations=4, enter=both)})
    least = begun.reports["one"]["spilled"]
    shares = [round(least + part * (1 - least), 3) for part in (0.0, 0.25, 0.5, 1.0)]
    judged = {f"{share:g}": effort.judged for share in shares}
    judged["found"] = judged[f"{shares[0]:g}"] = effort.judged_short
    warm = effort.fixed - effort.judged
    cases = {
        f"{share:g}": replace(
            plain["one"], iterations=warm + judged[f"{share:g}"], enter=both, fixed={"spilled": share}
        )
        for share in shares
    }  # fmt: skip
    cases["found"] = replace(
        plain["one"], iterations=effort.climb + judged["found"], enter=both, fixed={"begins": 1.0}
    )  # fmt: skip
    took: dict[str, list[float]] = {case: [] for case in cases}
    ratios, found, climbs = list[float](), dict[str, Played](), list[Played]()
    for number in range(rounds):
        for case, play in _in_turn(cases, number):
            found[case] = bench.play(f"{case}-{number}", {"one": play})
            took[case].append(found[case].iteration_s(judged[case]))
        ratios.append(took["found"][-1] / min(took[f"{share:g}"][-1] for share in shares))
        climbs.append(found["found"])
    bars = [
        *(Bar(what=f"{share:.0%} on the disk, seconds an iteration", values=took[f"{share:g}"]) for share in shares),
        Bar(what=f"found after {WINDOWS} windows", values=took["found"]),
        Bar(what="found, to the best share that was held", values=ratios, most=NEAR_MOST),
    ]
    return bars, {
        "rate_bytes_per_s": rate, "shares": shares, "iteration_s": took, "ratios": ratios, **_worst(ratios, climbs),
        **_told(found),
    }  # fmt: skip


def measure_death(bench: SpillBench, effort: Effort, _rounds: int) -> tuple[list[Bar], dict[str, Any]]:
    """All that is read comes from the donor, until that is killed in the middle."""
    bench.shape(100_000_000)
    plain = {name: Play(options=options, iterations=effort.death) for name, options in _jobs().items()}
    alone = bench.play("alone", plain)
    bench.start_donor()
    at_peer = {
        name: replace(play, has_peer=True, fixed={"spilled": 0.5, "by_peer": 1.0}) for name, play in plain.items()
    }  # fmt: skip
    killed_ns: list[int] = []
    jobs = [f"death-{name}" for name in plain]
    died = bench.play("death", at_peer, lambda: bench.kill_donor_after(effort.death // 2, jobs, killed_ns))
    assert all(one["peer_bytes"] > 0 for one in died.reports.values()), "nothing came from the donor"
    lost = sum(
        sorted(pushes) != list(range(effort.death)) or died.models[name] != alone.models[name]
        for name, pushes in died.pushes_ns.items()
    )
    went_on = sum(max(pushes.values()) > killed_ns[0] for pushes in died.pushes_ns.values())
    pause_s = died.longest_s(killed_ns[0])
    bars = [
        Bar(what="jobs that lost an iteration or a bit", values=[lost], most=0, form="{:.0f}"),
        Bar(what="jobs that had ended before", values=[len(plain) - went_on], most=0, form="{:.0f}"),
        Bar(what="the longest iteration after it, seconds", values=[pause_s]),
    ]
    return bars, {"longest_s": pause_s, **_told({"alone": alone, "died": died})}


PARTS: Mapping[str, Part] = {
    "memory": measure_memory,
    "chooser-computing": partial(measure_chooser, ratio=0.25),
    "chooser-communicating": partial(measure_chooser, ratio=6.0, slow=5),
    "climb": measure_climb,
    "death": measure_death,
}
