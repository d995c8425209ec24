"""Which leases a deployment serves on, asks for and gives back. PURE.

A lease is a job with one GPU and a time limit. Before it ends its manager is asked to extend it. Where that refuses, or
does not answer in time, and when its node drains, no executor starts there, its worker hangs up, or executors serve
there and their worker does not answer, it is replaced: another one is asked for, and the old one is given back once
nothing runs there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

WAITING = frozenset({"waiting", "held", "placed", "starting"})
RUNNING = "running"
LIVE = WAITING | {RUNNING}
# So long before its job is ended a lease is left, whether there is another one or not.
LAST_S = 10.0
# One on which no executor could be started so often is given back.
FAILURES_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as it was seen last.

    Attributes:
        job_id: Of its job.
        number: By which plans call its GPU.
        phase: Of its job, as the manager calls it.
        node: Where it is; empty while it has no GPU.
        left_s: Seconds that it may still hold its GPU.
        is_draining: Its node takes no new jobs.
        answers: Its worker is connected, and executors may be started there now.
        serves: Executors run there, over connections of their own.
        is_unfit: No executor could be started there, time after time.
        may_extend: Its manager has not refused to extend it.
        is_outdated: The deployment's file asks for another one now.
        hangs_up: Its worker has hung up on each of the front's keys, time after time.
        is_silent: Its worker did not answer, time after time, while executors served there, and has not since.
    """

    job_id: str
    number: int
    phase: str
    node: str = ""
    left_s: float = 0.0
    is_draining: bool = False
    answers: bool = False
    serves: bool = False
    is_unfit: bool = False
    may_extend: bool = False
    is_outdated: bool = False
    hangs_up: bool = False
    is_silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRules:
    """``spare``: leases beyond those that are needed. ``most``: that are needed at most, without spare ones."""

    most: int
    spare: int
    replace_before_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What follows.

    Attributes:
        usable: Numbers of GPUs on which executors may stay, and may be started unless the worker is out of reach.
        leaving: By number, why a lease that runs is to be left.
        missing: How many of those that are needed, or are to be spare, are not ready.
        submit: How many to ask for.
        cancel: Jobs to give back.
        extend: Jobs whose time limit is to be extended.
    """

    usable: frozenset[int]
    leaving: Mapping[int, str]
    missing: int
    submit: int
    cancel: tuple[str, ...]
    extend: tuple[str, ...] = ()


def judge(leases: Sequence[Lease], needed: int, in_use: AbstractSet[int], rules: LeaseRules) -> Judged:
    """What follows from the leases that there are.

    Args:
        leases: All whose jobs are not over.
        needed: GPUs that the plan, or the one that is to come, has.
        in_use: Numbers of GPUs that have executors.
        rules: How many there may be, and when one is replaced.
    """
    leaving = {one.number: why for one in leases if one.phase == RUNNING and (why := _why_left(one, rules))}
    live = [one for one in leases if one.phase in LIVE and one.number not in leaving]
    staying = [one for one in live if not one.is_outdated]
    ready = [one for one in staying if one.phase == RUNNING and one.answers]
    lacking = needed - len(ready)
    # As long as others are missing, those that are to be left serve on, those with executors first. So do those whose
    # worker is out of reach, where executors run.
    running = [one for one in leases if one.phase == RUNNING and (one.answers or one.serves)]
    kept = [one for one in running if one not in ready and one.left_s > LAST_S]
    kept = sorted(kept, key=lambda one: (one.number not in in_use, -one.left_s))[: max(0, lacking)]
    serving = {one.number for one in (*ready, *kept)}
    wanted = min(needed, rules.most) + rules.spare
    left = [one for one in leases if one.number in leaving and one.number not in serving | in_use]
    # Others are asked for first: a manager that takes none of them leaves these where they wait.
    outdated = [one for one in live if one.is_outdated and one.number not in in_use]
    unwanted = outdated[: max(0, len(live) - wanted)]
    given_back = [*left, *unwanted, *_surplus(staying, len(staying) - wanted, in_use)]
    needed_still = [*staying, *(one for one in kept if one not in staying)]
    extended = [one for one in needed_still if one not in given_back and _is_to_extend(one, rules)]
    return Judged(
        usable=frozenset(serving - {one.number for one in given_back}),
        leaving=leaving,
        missing=max(0, wanted - len(ready)),
        submit=max(0, wanted - len(staying)),
        cancel=tuple(one.job_id for one in given_back),
        extend=tuple(one.job_id for one in extended),
    )


def _why_left(one: Lease, rules: LeaseRules) -> str:
    if one.is_draining:
        return f"{one.node} drains"
    if one.is_unfit:
        return "no executor starts there"
    if one.hangs_up:
        return "its worker hangs up on each of the front's keys"
    if one.is_silent:
        return "its worker does not answer"
    if one.is_outdated:
        return "the file asks for another one"
    return "its time ends" if one.left_s <= rules.replace_before_s and not _is_to_extend(one, rules) else ""


def _is_to_extend(one: Lease, rules: LeaseRules) -> bool:
    """Whether its manager is asked to extend it, for the first half of the time in which it is to be replaced."""
    ends = rules.replace_before_s / 2 < one.left_s <= rules.replace_before_s
    return ends and one.may_extend and one.phase == RUNNING and not one.is_draining and not one.is_unfit


def _surplus(staying: Sequence[Lease], count: int, in_use: AbstractSet[int]) -> Sequence[Lease]:
    """Those to give back of leases that are too many: first those that wait, then so that nodes become empty."""
    on_node = Counter(one.node for one in staying)
    free = [one for one in staying if one.number not in in_use]
    free.sort(key=lambda one: (one.phase == RUNNING, on_node[one.node], one.node, one.number))
    return free[: max(0, count)]
