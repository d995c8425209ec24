"""The part of docs/profiler.md that is told by a run of `profile_cost`: pure, text in and out."""

from collections.abc import Mapping
from typing import Any

from benchmarks.render import table

HEAD = "## What it costs\n"
Told = Mapping[str, Any]


def section(told: Told) -> str:
    """The section, from what the run wrote down."""
    machine = told["machine"]
    return "\n".join(
        [
            HEAD,
            "Written by `python -m benchmarks.profile_cost`, with the library and without, in turn, at commit "
            f"{told['commit'] or 'unknown'},",
            f"{machine['cpu']}, {machine['cores']} cores, load average before it {machine['load_before']}.",
            "",
            *_training(told["training"]),
            "Whole runs beside each other, which differ by more than it takes; the middle half is of the differences:",
            "",
            table(
                ("load", "without, us", "more time", "middle half", "more CPU", "more CPU without a file"),
                [_row(cost) for cost in told["costs"]],
            ),
            "",
        ]
    )


def _training(training: Told) -> list[str]:
    rows = [
        ("CPU a message, ns", "message_ns", 1.0, ".0f"),
        ("messages of an iteration", "messages", 1.0, ".1f"),
        ("an iteration, us", "iteration_us", 1.0, ",.0f"),
        ("**of the iteration, %**", "share", 100.0, ".3f"),
    ]
    body = [
        (words, *(format(training[name][key] * scale, form) for key in ("value", "low", "high")))
        for words, name, scale, form in rows
    ]
    head = ("`examples/train.py`, one of two workers that do not pause", "median", "95 %, from", "to")
    return [table(head, body), ""]


def _row(cost: Told) -> tuple[str, ...]:
    spread = f"{cost['wall_low']:+.2%} to {cost['wall_high']:+.2%}"
    more = (f"{cost[name]:+.2%}" for name in ("cpu", "idle_cpu"))
    return (cost["case"], f"{cost['round_us']:.1f}", f"{cost['wall']:+.2%}", spread, *more)
