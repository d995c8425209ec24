"""Helios's seven implications, tested on a cluster: one statistic each, with its threshold. PURE.

The paper draws them from pictures of four clusters. The statistics and the bars are ours: chosen so that what the
paper's text says of its own clusters would pass, and so that no bar is passed by chance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sim.characterise.busy_times import Month
from farside.scheduler.sim.characterise.survey import CALENDAR, SIZES, STARTS, STATUSES, USERS, VCS, Survey
from farside.scheduler.sim.characterise.tenants import STEP_S
from farside.scheduler.sim.characterise.users import TOP_SHARE
from farside.scheduler.sim.trace.log import Status
from farside.units import format_seconds

# The hour of day explains that much of how submissions, and use, differ within days. Night and day differ by 5 to 8 %
# of all GPUs in the paper's clusters, whose hours have a deviation of 7 to 12 %.
PATTERN_BAR, USE_PATTERN_BAR, FEWEST_DAYS = 0.2, 0.1, 7
# Months of at least half a month, of which a deviation means something. Single-GPU jobs take 3 to 12 % of GPU time.
FEWEST_MONTHS, SHORTEST_MONTH_DAYS, SINGLE_TIME_BAR = 3, 15.0, 0.15
# Of what is waited for, that part could have run on idle GPUs elsewhere.
IMBALANCE_BAR = 0.25
# "over 50 % single-GPU jobs in each cluster", which "only occupy 3 to 12 % of the total GPU time".
SINGLE_JOBS_BAR, MULTI_TIME_BAR = 0.5, 0.8
# 37.6 % of GPU jobs are unsuccessful in the paper; failed ones alone took over a third of Philly's GPU time.
IN_VAIN_BAR = 0.2
# Shares of statuses are of those that are known; below this part of all they may be those of a few odd jobs.
KNOWN_BAR = 0.8
# "most failed jobs are terminated within a short time", and wait "much longer than" they run.
SHORT_S, SHORT_BAR, LONGER_BAR = 600.0, 0.5, 0.5
# In Uranus 1 % of users bear over 70 % of the waiting; a twentieth of users is what smaller clusters have, too.
FEWEST_USERS, MARQUEE_BAR = 20, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on one implication.

    Attributes:
        number: As the paper counts.
        claim: What it says, in a line.
        holds: None: the log cannot tell.
        found: The statistic, in words with its figures; why not, where the log cannot tell.
        bar: What it must reach.
        values: The statistic's figures.
    """

    number: int
    claim: str
    holds: bool | None
    found: str
    bar: str
    values: tuple[float, ...] = ()


_CLAIMS = (
    "use and submissions have a daily pattern that can be predicted",
    "multi-GPU jobs come steadily by month and matter; single-GPU jobs do neither",
    "jobs wait in some virtual clusters while others are idle",
    "most jobs have one GPU; most GPU time goes to jobs with several",
    "much GPU time goes to jobs that do not complete, and could be stopped early",
    "failed jobs are short, and wait longer than they run",
    "a few users bear most of the waiting",
)

# Whether it holds, what was found, the bar, the figures.
_Finding = tuple[bool | None, str, str, tuple[float, ...]]


def verdicts(found: Survey) -> tuple[Verdict, ...]:
    """Verdicts on all seven implications, in the paper's order."""
    judges: tuple[Callable[[Survey], _Finding], ...] = (
        _daily, _monthly, _imbalanced, _multi, _in_vain, _debugging, _marquee,
    )  # fmt: skip
    told = (judge(found) for judge in judges)
    return tuple(
        Verdict(number=at, claim=claim, holds=holds, found=words, bar=bar, values=values)
        for at, (claim, (holds, words, bar, values)) in enumerate(zip(_CLAIMS, told, strict=True), 1)
    )


def _lacking(found: Survey, *names: str) -> str:
    missing = [name for name in names if name in found.lacks]
    return f"the log lacks {' and '.join(missing)}" if missing else ""


def unknown_statuses(share: float, of: str) -> str:
    """Why nothing is said where too few final statuses are known."""
    return f"final statuses are known of {share:.1%} of {of}, {KNOWN_BAR:.0%} are needed"


def _daily(found: Survey) -> _Finding:
    """[helios Implication 1]"""
    bar = f"hour of day explains {PATTERN_BAR:.0%} of submissions and {USE_PATTERN_BAR:.0%} of use within days"
    day = found.diurnal
    if day is None or day.days < FEWEST_DAYS:
        return None, _lacking(found, CALENDAR) or f"{FEWEST_DAYS} whole days are needed", bar, ()
    told = f"{day.submissions_pattern:.0%} of submissions"
    values: tuple[float, ...] = (day.submissions_pattern,)
    holds = day.submissions_pattern >= PATTERN_BAR
    if day.utilisation_pattern is not None:
        told += f", {day.utilisation_pattern:.0%} of use"
        values += (day.utilisation_pattern,)
        holds = holds and day.utilisation_pattern >= USE_PATTERN_BAR
    else:
        told += "; use is not known"
    return holds, told, bar, values


def _monthly(found: Survey) -> _Finding:
    """[helios Implication 2]"""
    bar = f"multi-GPU jobs vary less by month than others, which take at most {SINGLE_TIME_BAR:.0%} of GPU time"
    whole = [month for month in found.months if month.days >= SHORTEST_MONTH_DAYS]
    if len(whole) < FEWEST_MONTHS:
        why = _lacking(found, CALENDAR) or f"{FEWEST_MONTHS} months are needed, the log has {len(whole)}"
        return None, why, bar, ()
    single, multi = (_variation(whole, of) for of in (lambda m: m.single, lambda m: m.multi))
    time = found.demand.single()[1]
    told = f"they vary by {multi:.0%} and {single:.0%} of their means; single-GPU jobs take {time:.1%}"
    return multi < single and time <= SINGLE_TIME_BAR, told, bar, (multi, single, time)


def _variation(months: list[Month], of: Callable[[Month], int]) -> float:
    """The standard deviation over the mean, of jobs a day."""
    rates = np.array([of(month) / month.days for month in months])
    return float(rates.std() / rates.mean()) if rates.mean() else 0.0


def _imbalanced(found: Survey) -> _Finding:
    """[helios Implication 3]"""
    bar = f"idle GPUs of others could have run {IMBALANCE_BAR:.0%} of what was waited for"
    if found.imbalance is None:
        why = _lacking(found, VCS, STARTS, SIZES) or "all jobs share one pool, or one virtual cluster"
        return None, why, bar, ()
    if not found.imbalance.waiting_gpu_s:
        return False, "nobody waited", bar, (0.0,)
    share = found.imbalance.share
    waited = format_seconds(found.imbalance.waiting_gpu_s)
    steps = "" if found.imbalance.step_s == STEP_S else f", by {format_seconds(found.imbalance.step_s)}"
    return share >= IMBALANCE_BAR, f"{share:.0%} of {waited} of GPU time waited for{steps}", bar, (share,)


def _multi(found: Survey) -> _Finding:
    """[helios Implication 4]"""
    bar = f"{SINGLE_JOBS_BAR:.0%} of jobs have one GPU, {MULTI_TIME_BAR:.0%} of GPU time goes to larger ones"
    jobs, time = found.demand.single()
    told = f"{jobs:.0%} of jobs, {1 - time:.0%} of GPU time"
    return jobs >= SINGLE_JOBS_BAR and 1 - time >= MULTI_TIME_BAR, told, bar, (jobs, 1 - time)


def _in_vain(found: Survey) -> _Finding:
    """[helios Implication 5]"""
    bar = f"{IN_VAIN_BAR:.0%} of GPU time"
    if found.gpu_time_ends is None:
        return None, _lacking(found, STATUSES) or "no job used GPU time", bar, ()
    if found.known_gpu_time < KNOWN_BAR:
        return None, unknown_statuses(found.known_gpu_time, "GPU time"), bar, ()
    _, canceled, failed = found.gpu_time_ends
    told = f"{canceled + failed:.0%}: canceled jobs {canceled:.0%}, failed ones {failed:.0%}"
    return canceled + failed >= IN_VAIN_BAR, told, bar, (canceled + failed,)


def _debugging(found: Survey) -> _Finding:
    """[helios Implication 6]"""
    limit = format_seconds(SHORT_S)
    bar = f"{SHORT_BAR:.0%} of failed jobs run up to {limit}; {LONGER_BAR:.0%} of those that waited did so longer"
    failed = found.gpu.of(found.gpu.status == Status.FAILED)
    if STATUSES in found.lacks or not len(failed):
        return None, _lacking(found, STATUSES) or "no job failed", bar, ()
    if found.known_jobs < KNOWN_BAR:
        return None, unknown_statuses(found.known_jobs, "GPU jobs"), bar, ()
    if not found.has_waits:
        return None, _lacking(found, STARTS), bar, ()
    is_short = failed.duration_s <= SHORT_S
    waited = is_short & (failed.wait_s > 0)
    short = float(is_short.mean())
    if not waited.any():
        return False, f"{short:.0%} are short, none of which waited", bar, (short, 0.0)
    longer = float((failed.wait_s > failed.duration_s)[waited].mean())
    told = f"{short:.0%} are short; of {int(waited.sum())} that waited, {longer:.0%} longer than they ran"
    return short >= SHORT_BAR and longer >= LONGER_BAR, told, bar, (short, longer)


def _marquee(found: Survey) -> _Finding:
    """[helios Implication 7]"""
    bar = f"{TOP_SHARE:.0%} of users bear {MARQUEE_BAR:.0%} of all waiting"
    count = len(found.log.users)
    if count < FEWEST_USERS:
        return None, _lacking(found, USERS) or f"{FEWEST_USERS} users are needed, the log has {count}", bar, ()
    waits, uses = found.waits_by_user, found.gpu_time_by_user
    if waits is None:
        return (None, _lacking(found, STARTS), bar, ()) if not found.has_waits else (False, "nobody waited", bar, ())
    share = waits.of_top()
    told = f"{waits.count()} of {count} users bear {share:.0%}"
    if uses is not None:
        told += f"; {len(waits.top() & uses.top())} of them are among the {uses.count()} who use most GPU time"
    return share >= MARQUEE_BAR, told, bar, (share,)
