"""Runs that are repeated where the machine was not ours, and figures that are medians of turns."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence

import pytest

from benchmarks.figure import Figure, Table
from benchmarks.serving.bars import missed
from benchmarks.serving.cost import Cost, Latency, Throughput, cost_figure
from benchmarks.serving.fidelity import Turn, fidelity_figure
from benchmarks.serving.machine_noise import Noise, Tried, Watch, noisy_note, own_cpu_s, spread, tried
from benchmarks.serving.promise import promise_figure
from farside.cli.demo.serving_load import Ended, Result
from farside.cli.demo.serving_rig import Mix

# A process uses so much; the kernel counts in ticks of 10 ms.
USED_S, COUNTED_S = 0.3, 0.25
QUIET, STOLEN, BUSY = Noise(0.0, 0.1), Noise(0.11, 0.0), Noise(0.0, 0.5)


@pytest.mark.parametrize(
    ("noises", "runs", "cells"),
    [
        ([QUIET], 1, ("0", "10", "0", "no")),
        ([BUSY, QUIET], 2, ("0", "10", "1", "no")),
        ([BUSY, STOLEN, QUIET], 3, ("0", "10", "2", "no")),
        ([STOLEN, QUIET, QUIET], 2, ("0", "10", "1", "no")),
        ([BUSY, BUSY, STOLEN, QUIET], 3, ("11", "0", "2", "yes")),
    ],
)
def test_a_noisy_run_is_repeated_twice_at_most_and_then_marked(
    noises: list[Noise], runs: int, cells: tuple[str, ...]
) -> None:
    told, ran = iter(noises), [0]

    class Told(Watch):
        def noise(self) -> Noise:
            return next(told)

    async def run() -> int:
        ran[0] += 1
        return ran[0]

    found = asyncio.run(tried(run, Told))

    assert found.result == ran[0] == runs, "the last run counts"
    assert found.cells() == cells


def test_what_a_process_that_was_waited_for_used_is_no_foreign_load() -> None:
    script = f"import time\nwhile time.process_time() < {USED_S}: pass"
    before_s = own_cpu_s()

    subprocess.run([sys.executable, "-c", script], check=True)

    assert own_cpu_s() - before_s >= COUNTED_S


def test_what_a_process_below_one_that_runs_has_used_is_no_foreign_load() -> None:
    burn = f"import time\nwhile time.process_time() < {USED_S}: pass\nprint('done', flush=True)\ninput()"
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    before_s = own_cpu_s()

    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "done\n"
        used_s = own_cpu_s() - before_s
        process.stdin.write("\n")

    assert used_s >= COUNTED_S


def test_the_spread_of_runs_is_their_median_least_and_most() -> None:
    assert spread([3.0, 1.0, 2.06], ".1f") == ("2.1", "1.0", "3.0")


def test_a_note_says_how_many_runs_are_noisy() -> None:
    quiet, noisy = Tried(0, QUIET, 0), Tried(0, BUSY, 2)

    assert noisy_note([quiet, quiet]).startswith("No run is noisy (2 in all)")
    assert noisy_note([quiet, noisy]).startswith("1 of 2 runs are noisy")


def result(met: int, dropped: int, latency_s: float = 0.1) -> Result:
    """Of one model."""
    answered = [Ended("m", 0.0, "met", latency_s) for _ in range(met)]
    return Result([*answered, *(Ended("m", 0.0, "dropped") for _ in range(dropped))], behind_s=0.001 * met)


def rows(figure: Figure, at: int) -> list[dict[str, str]]:
    """The rows of a table by its columns, which are all different."""
    table: Table = figure.tables[at]
    assert len(set(table.header)) == len(table.header)
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def test_a_promise_is_judged_by_the_median_of_its_turns() -> None:
    mix = Mix(slo_ms={"m": 200.0}, most={"m": 100.0})
    turns = [Tried(result(100 - bad, bad, 0.1 * (1 + bad)), QUIET, 0) for bad in (5, 0, 1)]

    figure = promise_figure(mix, turns, 120.0)
    model, every = rows(figure, 0)

    assert (model["model"], model["requests/s"], model["SLO ms"]) == ("m", "80.0", "200")
    assert (model["violated %"], model["least"], model["most"]) == ("1.00", "0.00", "5.00")
    assert (model["p99 ms"], model["p99 least"], model["p99 most"]) == ("200.0", "100.0", "600.0")
    assert (every["model"], every["violated %"]) == ("all", "1.00")
    assert [(row["met"], row["dropped"], row["noisy"]) for row in rows(figure, 1)] == [
        ("95", "5", "no"), ("100", "0", "no"), ("99", "1", "no"),
    ]  # fmt: skip
    assert missed(figure) == []
    assert missed(promise_figure(mix, [turns[0], turns[0], turns[1]], 120.0)) == ["violated, %: 5, at most 1"]


def test_the_simulator_is_judged_by_the_median_of_turns_at_each_share() -> None:
    found = [
        Turn(share, 100, 100, Tried(result(100 - bad, bad), BUSY if bad == 9 else QUIET, 0))
        for bad in (9, 0, 2)
        for share in (0.8, 1.0, 1.2)
    ]

    figure = fidelity_figure(found, 10.0)
    first = rows(figure, 0)[0]

    assert [row["share"] for row in rows(figure, 0)] == ["0.8", "1", "1.2"]
    assert (first["in time/s simulated"], first["served"]) == ("10.0", "9.8")
    assert (first["off by %"], first["least"], first["most"]) == ("2.00", "0.00", "9.00")
    assert (first["off by points"], first["points least"], first["points most"]) == ("2.00", "0.00", "9.00")
    assert [row["noisy"] for row in rows(figure, 1)] == ["yes"] * 3 + ["no"] * 6
    assert missed(figure) == []
    assert figure.notes[0].startswith("3 of 9 runs are noisy")


def cost(more_ms: float, *rates: float) -> Cost:
    """Of a deployment; rates of HTTP and gRPC at 8 clients, then at 32."""
    doors: Sequence[tuple[str, int]] = (("HTTP", 8), ("gRPC", 8), ("HTTP", 32), ("gRPC", 32))
    throughputs = [Throughput(*door, rate, 1.0, 100.0, 50.0) for door, rate in zip(doors, rates, strict=True)]
    return Cost(Latency(local=1.0, paused=1.5, over=1 + more_ms, null=0.5), more_ms, throughputs)


def test_cost_is_judged_by_the_median_of_all_deployments() -> None:
    found = [
        Tried(cost(0.9, 4000, 3000, 6000, 3000), QUIET, 0),
        Tried(cost(1.5, 5100, 2000, 6000, 3000), QUIET, 1),
        Tried(cost(0.8, 5200, 2400, 6000, 3000), QUIET, 0),
    ]

    figure = cost_figure(found, 5.0)
    more = figure.tables[0].rows[-1]
    http, grpc = rows(figure, 1)[:2]

    assert more == ("more (at most 1)", "0.900", "0.800", "1.500")
    assert (http["requests/s"], http["least"], http["most"], http["to reach"]) == ("5,100", "4,000", "5,200", "5,000")
    assert (grpc["requests/s"], grpc["least"], grpc["most"]) == ("2,400", "2,000", "3,000")
    assert [(row["deployment"], row["ms more"], row["repeats"]) for row in rows(figure, 2)] == [
        ("1", "0.900", "0"), ("2", "1.500", "1"), ("3", "0.800", "0"),
    ]  # fmt: skip
    assert missed(figure) == ["gRPC requests/s, 8 clients: 2,400, at least 2,500"]
