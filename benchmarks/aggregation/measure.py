"""Rounds in which the systems take turns."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.aggregation.group import Group, ask_all, cpu_s
from benchmarks.aggregation.judge import Sample, busy_s, other_share
from benchmarks.aggregation.plan import KINDS, Workload, in_turn
from benchmarks.load import BenchmarkError

WARM_STEPS = 3
STEPS_MAX = 4000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Systems:
    """What is measured, by name; a system that has failed is ended and left out from then on."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self.groups = dict(groups)
        self.failures: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        return list(self.groups)

    def fail(self, name: str, why: BenchmarkError) -> None:
        print(f"benchmarks: {name} is left out from here on: {why}", file=sys.stderr)
        group = self.groups.pop(name)
        self.failures[name] = str(why)
        # Three names are one group.
        for other in [one for one, found in self.groups.items() if found is group]:
            del self.groups[other]
            self.failures[other] = str(why)
        group.close()


def exchanges(systems: Systems, workloads: Sequence[Workload], rounds: int, target_s: float) -> Iterator[Sample]:
    """All systems with all workloads, so many rounds."""
    steps: dict[tuple[str, str], int] = {}
    for at in range(rounds):
        for place, workload in enumerate(workloads):
            for name in in_turn(systems.names, at + place):
                if name not in systems.groups:
                    continue
                try:
                    yield _exchange(systems.groups[name], name, workload, at, steps, target_s)
                except BenchmarkError as error:
                    systems.fail(name, error)


def _exchange(
    group: Group, name: str, workload: Workload, at: int, steps: dict[tuple[str, str], int], target_s: float
) -> Sample:
    group.prepare(workload, KINDS.get(name, ""))
    warm = ask_all(group.members, do="run", steps=WARM_STEPS)
    key = name, workload.name
    if key not in steps:
        each_s = max(answer["seconds"] for answer in warm) / WARM_STEPS
        steps[key] = min(STEPS_MAX, max(2, math.ceil(target_s / each_s)))
    seconds, used_s, share = metered(
        group, lambda: max(answer["seconds"] for answer in ask_all(group.members, do="run", steps=steps[key]))
    )
    group.release()
    return Sample(
        round=at, workload=workload.name, system=name, size_bytes=workload.size_bytes,
        step_s=seconds / steps[key], cpu_s=used_s / steps[key], other_share=share,
    )  # fmt: skip


def metered(group: Group, work: Callable[[], float]) -> tuple[float, float, float]:
    """What ``work`` gives, the group's CPU seconds meanwhile, and the share of the machine that other work had."""
    before_s, used_s, begun_s = _busy_s(), cpu_s(group), time.monotonic()
    given = work()
    used_s, wall_s = cpu_s(group) - used_s, time.monotonic() - begun_s
    return given, used_s, other_share(_busy_s() - before_s, used_s, wall_s, os.cpu_count() or 1)


def _busy_s() -> float:
    return busy_s(Path("/proc/stat").read_text(), TICKS_PER_S)
