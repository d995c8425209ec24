"""What-if analysis of an implication: the same jobs simulated again with one change. PURE.

Each what-if is compared with strict first come first served on the same empty cluster, so that what differs is the
change and nothing else. That is no forecast of what the cluster's own scheduler would do with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farside.scheduler.sim.characterise.replay import HeadStarts, Stage, trace_jobs, waits_s
from farside.scheduler.sim.characterise.users import TOP_SHARE, concentration
from farside.scheduler.sim.cluster import VcSize
from farside.scheduler.sim.trace.log import Status
from farside.scheduler.table import Floats

Rows = NDArray[np.bool_]

# Helios's example of a limit for debugging jobs. [helios Implication 6]
DEBUG_S = 120.0
# Failing jobs are recognised when they have run this part of their time. [ours; every one of them is, which is a bound]
RECOGNISED_AT = 0.5
DEBUG_VC = " debug"  # no log's name begins with a space


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some jobs and their mean wait, before and after; NaN where there are none."""

    name: str
    jobs: int
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One change, and what it does.

    Attributes:
        implication: Its number.
        title: The change, in a few words.
        told: What exactly was changed.
        groups: All jobs first, then those that it is about.
        saved_gpu_s: GPU time that nobody used in vain; 0 where the change saves none.
    """

    implication: int
    title: str
    told: str
    groups: tuple[Group, ...]
    saved_gpu_s: float = 0.0


def lending(found: Stage, before_s: Floats) -> WhatIf | None:
    """Idle nodes of virtual clusters without a queue run other jobs; None with fewer than two virtual clusters."""
    if found.sizes.is_pool or len(found.sizes.largest) < 2:
        return None
    after_s = waits_s(found, is_lending=True)
    return WhatIf(
        implication=3,
        title="lending between virtual clusters",
        told="Idle nodes of a virtual cluster where nobody waits run the others' jobs, and go back when those end or "
        "their owner wants them.",
        groups=_groups(before_s, after_s),
    )


def early_stop(found: Stage, before_s: Floats) -> WhatIf | None:
    """Failing jobs are stopped half way; None where none failed."""
    failed = found.log.status == Status.FAILED
    if not failed.any():
        return None
    log = found.log
    lasting_s = np.where(failed, log.duration_s * RECOGNISED_AT, log.duration_s)
    after_s = waits_s(found, jobs=trace_jobs(found, lasting_s))
    return WhatIf(
        implication=5,
        title="early stop of jobs that will fail",
        told=f"Every job that fails is recognised, and stopped, when it has run {RECOGNISED_AT:.0%} of its time: a "
        "bound for what a predictor could do.",
        groups=_groups(before_s, after_s),
        saved_gpu_s=float((log.gpus * (log.duration_s - lasting_s)).sum()),
    )


def debug_queue(found: Stage, before_s: Floats) -> WhatIf | None:
    """Short jobs get a virtual cluster of their own; None where none is short, or no node can be spared."""
    log = found.log
    taken = _spared(found)
    if taken is None:
        return None
    donor, gpus = taken
    is_short = (log.duration_s <= DEBUG_S) & (log.gpus <= gpus)
    if not is_short.any():
        return None
    sizes = [VcSize(vc=name, gpus=has - gpus * (name == donor)) for name, has in found.sizes.largest.items() if has]
    moved = dict.fromkeys(np.flatnonzero(is_short).tolist(), DEBUG_VC)
    after_s = waits_s(found, jobs=trace_jobs(found, vcs=moved), vc_sizes=(*sizes, VcSize(vc=DEBUG_VC, gpus=gpus)))
    groups: dict[str, Rows] = {"short jobs": is_short, "others": ~is_short}
    failed = is_short & (log.status == Status.FAILED)
    if failed.any():
        groups["short jobs that failed"] = failed
    where = f" of {donor}" if donor else ""
    return WhatIf(
        implication=6,
        title="a short debug queue",
        told=f"{gpus} GPUs{where} are set apart for jobs of at most {DEBUG_S:.0f} s, as if users knew theirs.",
        groups=_groups(before_s, after_s, groups),
    )


def _spared(found: Stage) -> tuple[str, int] | None:
    """Largest virtual cluster whose largest job still fits after nodes are taken away, and its GPUs.

    As many nodes as make a fiftieth of all GPUs, at least one.
    """
    per_node = found.sizes.gpus_per_node
    gpus = max(1, round(found.sizes.gpus / 50 / per_node)) * per_node
    needs: dict[str, int] = {}
    for row, count in enumerate(found.log.gpus.tolist()):
        vc = found.vc_of(row)
        needs[vc] = max(needs.get(vc, 0), count)
    for name, has in sorted(found.sizes.largest.items(), key=lambda item: -item[1]):
        # Whole nodes for the largest job, wherever its parts would have to stand.
        if has - gpus >= -(-max(needs.get(name, 1), 1) // per_node) * per_node:
            return name, gpus
    return None


def boost(found: Stage, before_s: Floats) -> WhatIf | None:
    """Users that waited most so far go first; None if the log names no users, or no job waits."""
    log = found.log
    waits = concentration(log, before_s, users=len(log.users))
    if waits is None:
        return None
    after_s = waits_s(found, head_starts=HeadStarts(log.user, len(log.users), TOP_SHARE))
    marquee = np.isin(log.user, list(waits.top()))
    return WhatIf(
        implication=7,
        title="a boost for the users who wait most",
        told=f"At any time the {TOP_SHARE:.0%} of users who have waited most so far get a head start in the queue: as "
        "long as their jobs have waited on average.",
        groups=_groups(before_s, after_s, {"jobs of who waited most before": marquee, "others": ~marquee}),
    )


def _groups(before_s: Floats, after_s: Floats, rows: Mapping[str, Rows] | None = None) -> tuple[Group, ...]:
    everyone = {"all jobs": np.ones(len(before_s), dtype=bool)}
    return tuple(
        Group(name=name, jobs=int(which.sum()), before_s=_mean(before_s, which), after_s=_mean(after_s, which))
        for name, which in (everyone | dict(rows or {})).items()
    )


def _mean(values: Floats, which: Rows) -> float:
    return float(values[which].mean()) if which.any() else math.nan
