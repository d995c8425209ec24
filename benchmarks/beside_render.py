"""The part of docs/slurm.md that is told by a run of `beside_slurm`: pure, text in and out."""

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farside.units import format_count

HEAD = "## Farside's own manager beside Slurm\n"
WIDTH = 118
LOAD_QUIET = 2.0  # above it something else had the cores
REMARK = (
    "One by one, Python's start costs most: it takes the greater part of a call's CPU time. To submit many jobs, use "
    "`--array`, or the API over one connection."
)
CALLS = {"farside": "`farside submit`", "slurm": "`sbatch`"}


def section(told: Mapping[str, Any]) -> str:
    """The section, from what the run wrote down: medians of its repetitions."""
    figures: Sequence[Mapping[str, Any]] = told["figures"]
    first = figures[0]
    return "\n".join(
        [
            HEAD,
            textwrap.fill(_source(told), WIDTH),
            *_warning(told),
            "",
            f"| | array of {first['jobs']:,}: jobs a second | its call | {first['singles']} one by one: jobs a second |"
            " one call | CPU of a call | from call to start |",
            "|---|---|---|---|---|---|---|",
            *(_row(name, [one for one in figures if one["name"] == name]) for name in CALLS),
            "",
            textwrap.fill(REMARK, WIDTH),
            "",
        ]
    )


def _source(told: Mapping[str, Any]) -> str:
    machine, names = told["machine"], [one["name"] for one in told["figures"]]
    return (
        "Written by `python -m benchmarks.beside_slurm`: four nodes with eight declared GPUs each, jobs of one GPU "
        f"that do nothing. {format_count(names.count(names[0]), 'repetition')} at commit "
        f"{told['commit'] or 'unknown'}, "
        f"{machine['cpu']}, {machine['cores']} cores, load average before it {machine['load_before']}."
    )


def _warning(told: Mapping[str, Any]) -> Iterator[str]:
    if told["machine"]["load_before"] > LOAD_QUIET:
        yield f"**The machine was busy (above {LOAD_QUIET:g}): compare the two, and trust neither figure alone.**"


def _row(name: str, some: Sequence[Mapping[str, Any]]) -> str:
    def middle(values: Sequence[float]) -> float:
        return statistics.median(values)

    array = middle([one["jobs"] / one["array_s"] for one in some])
    singly = middle([one["singles"] / one["singly_s"] for one in some])
    times_ms = [1000 * middle([one[key] for one in some]) for key in ("submit_s", "call_s", "cpu_s", "start_s")]
    submit, call, cpu, start = (f"{value:.0f} ms" for value in times_ms)
    return f"| {CALLS[name]} | {array:.1f} | {submit} | {singly:.1f} | {call} | {cpu} | {start} |"
