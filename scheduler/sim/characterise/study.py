"""Study of a log: the survey, the verdicts, and the what-ifs that the log allows. PURE."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from farside.scheduler.sim.characterise import what_if
from farside.scheduler.sim.characterise.cluster_size import Sizes
from farside.scheduler.sim.characterise.implications import KNOWN_BAR, Verdict, unknown_statuses, verdicts
from farside.scheduler.sim.characterise.replay import Stage, busiest, stage, waits_s
from farside.scheduler.sim.characterise.survey import SIZES, STARTS, STATUSES, USERS, VCS, Survey, survey
from farside.scheduler.sim.characterise.what_if import WhatIf
from farside.scheduler.sim.trace.log import JobLog
from farside.scheduler.table import Floats

# Enough for days of a busy cluster, and few enough to run five times while somebody waits for the page.
WHAT_IF_JOBS = 20_000

_WHAT_IFS: tuple[tuple[int, str, tuple[str, ...], Callable[[Stage, Floats], WhatIf | None], str], ...] = (
    (3, "lending between virtual clusters", (VCS,), what_if.lending, "there is one pool, or one virtual cluster"),
    (5, "early stop of jobs that will fail", (STATUSES,), what_if.early_stop, "no job of the stretch failed"),
    (6, "a short debug queue", (), what_if.debug_queue, "no job is short, or no node can be spared"),
    (7, "a boost for the users who wait most", (USERS,), what_if.boost, "nobody waited"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The jobs that the what-ifs were simulated on."""

    jobs: int
    of: int
    first_s: float
    last_s: float
    left_out: int
    mean_wait_s: float
    logged_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Study of a log: survey, verdicts and what-ifs.

    Attributes:
        survey: What the figures show.
        verdicts: Of the seven implications.
        stretch: None where nothing could be simulated.
        what_ifs: That could be.
        omitted: The others: implication, change, why not.
    """

    survey: Survey
    verdicts: tuple[Verdict, ...]
    stretch: Stretch | None
    what_ifs: tuple[WhatIf, ...]
    omitted: tuple[tuple[int, str, str], ...]


def study(
    log: JobLog, sizes: Sizes | None, *, what_if_jobs: int = WHAT_IF_JOBS, tell: Callable[[str], None] = lambda _: None
) -> Study:
    """Study a log that has GPU jobs.

    Args:
        log: All of its jobs.
        sizes: The cluster; None where nobody knows.
        what_if_jobs: The what-ifs are simulated on the busiest stretch of so many GPU jobs; 0: there are none.
        tell: Called with what is done next, in a word or two.
    """
    found = survey(log, sizes, tell=tell)
    told = verdicts(found)
    if sizes is None or not what_if_jobs:
        why = f"the log lacks {SIZES} and {STARTS} to guess it from" if sizes is None else "not asked for"
        return Study(survey=found, verdicts=told, stretch=None, what_ifs=(), omitted=_omitted(why))
    tell("simulating")
    whole = stage(found.gpu, sizes)
    if not len(whole.log):
        omitted = _omitted("no job fits on this cluster")
        return Study(survey=found, verdicts=told, stretch=None, what_ifs=(), omitted=omitted)
    chosen = busiest(whole, what_if_jobs)
    before_s = waits_s(chosen)
    done: list[WhatIf] = []
    omitted_here: list[tuple[int, str, str]] = []
    for number, title, needs, run, otherwise in _WHAT_IFS:
        why_not = _why_not(found, needs)
        tell(f"what if: {title}")
        result = None if why_not else run(chosen, before_s)
        if result is not None:
            done.append(result)
        else:
            omitted_here.append((number, title, why_not or otherwise))
    return Study(
        survey=found, verdicts=told, stretch=_stretch(found, chosen, before_s), what_ifs=tuple(done),
        omitted=tuple(omitted_here),
    )  # fmt: skip


def _why_not(found: Survey, needs: tuple[str, ...]) -> str:
    missing = [name for name in needs if name in found.lacks]
    if missing:
        return f"the log lacks {' and '.join(missing)}"
    if STATUSES in needs and found.known_gpu_time < KNOWN_BAR:
        return unknown_statuses(found.known_gpu_time, "GPU time")
    return ""


def _omitted(why: str) -> tuple[tuple[int, str, str], ...]:
    return tuple((number, title, why) for number, title, *_ in _WHAT_IFS)


def _stretch(found: Survey, chosen: Stage, before_s: Floats) -> Stretch:
    wait_s = chosen.log.wait_s
    known = wait_s[wait_s == wait_s]  # not NaN
    return Stretch(
        jobs=len(chosen.log),
        of=len(found.gpu),
        first_s=float(chosen.log.submit_s[0]),
        last_s=float(chosen.log.submit_s[-1]),
        left_out=chosen.left_out,
        mean_wait_s=float(before_s.mean()),
        logged_wait_s=float(known.mean()) if len(known) and not found.is_replayed else math.nan,
    )
