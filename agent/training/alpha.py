"""How much of their input co-located jobs keep on the disk: hill climbing on the group's iteration. PURE.

The paper's alpha is the share of a job's input blocks that are on the disk [harmony §IV-C]. A job at a time tries
another share, and keeps it where an iteration of the whole group is shorter with it. What fills its memory goes up at
once, and no share is tried for which memory has no room.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from farside.group_time import GroupTime, ReadCost, Reloading, best_peer_bytes, mean_cost, reloading_s

WINDOW = 3
"""Iterations of each job that a share is judged by."""
USES_MAX = 64
"""Iterations of a job that are kept while others have fewer than `WINDOW`."""
DROPPED = 1
"""Iterations of each job after a change that nobody judges by: blocks are written or read back in them."""
FIRST_STEP, LAST_STEP, LONGEST_STEP = 0.1, 0.025, 0.4
LEAST_GAIN = 0.02
FREE_STALL, STALL_WEIGHT = 0.05, 10.0
FULL, ROOM = 0.95, 0.9
"""Shares of a job's limit: from where its memory is full, and how far it is to be filled."""
THAW = 0.1
"""How far the cost has to move until a job that has settled tries again."""
PEER_GAIN, PEER_PERIOD, LONGER, LONGEST_PERIOD = 0.05, 10, 4, 640
"""What a change of places has to gain, and for how many iterations it stays.

So many times longer after one that gained nothing: that costs an iteration or two, 4 % of forty and 1 % of 160.
"""
MOVE_DROPPED = 2
"""Iterations of a job after a change of places that nobody judges by: a block goes to a peer when it is read next."""
WAITED, FROM_DISK, BELIEVED_LESS = 0.5, 0.9, 1.02
"""A disk from which nearly all comes, and for which jobs wait so much of the time, delivers all that it can. It may
deliver more by and by: so much is added to that in each window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a job says of an iteration.

    Attributes:
        job: Its name.
        spilled: The share of its input that was on the disk.
        iteration_s: How long it took, with all waiting.
        comp_s, net_s: What of that it computed and was on the network, without waiting.
        stall_s: In how much of it its memory was waited for.
        input_bytes: Its input on this node.
        used_bytes, limit_bytes: Memory that it has, and may have; 0: it has no limit.
        disk, peer: What reading back costs; None: not known, or there is no such place.
        wait_s: How long it waited for blocks.
        disk_bytes, peer_bytes: What it has read back from there since it started.
        waited_s: How long it has waited for blocks since then.
    """

    job: str
    spilled: float
    iteration_s: float
    comp_s: float = 0.0
    net_s: float = 0.0
    stall_s: float = 0.0
    input_bytes: int = 0
    used_bytes: int = 0
    limit_bytes: int = 0
    disk: ReadCost | None = None
    peer: ReadCost | None = None
    wait_s: float = 0.0
    disk_bytes: int = 0
    peer_bytes: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A job is not on this node any more."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A job has said nothing for too long: nobody waits for its words any more, as long as it is here."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What a job is to do: the share of its input on the disk, and which share of that it reads from a peer."""

    spilled: float = 0.0
    by_peer: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Climber:
    """One job.

    Attributes:
        keep: What it was told last.
        least: The least share that memory has room for, as far as is known.
        step: How far it tries to go; None: it has settled.
        direction: Where to.
        has_failed: Whether the other direction was no better.
        widens: Whether it goes further where a difference is smaller than what iterations vary by.
        settled_s: The cost when it settled.
        uses: Its iterations of this window.
        to_drop: Iterations that are not judged by.
    """

    keep: Keep
    least: float = 0.0
    step: float | None = FIRST_STEP
    direction: int = -1
    has_failed: bool = False
    widens: bool = True
    settled_s: float = 0.0
    uses: tuple[Use, ...] = ()
    to_drop: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A job tries another share: the one before, and what an iteration cost with it."""

    job: str
    before: float
    cost_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Places were changed: the share that each job read from a peer before, and what an iteration cost then."""

    before: Mapping[str, float]
    cost_s: float


_NOBODY = GroupTime(comp_s=0.0, comm_s=0.0, longest_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilling:
    """All that is known of a node.

    Attributes:
        jobs: Those that can spill.
        silent: Those that said nothing for too long. They try nothing; what fills their memory still goes up at once.
        beside: Computing and communicating in an iteration of jobs that can't, in seconds.
        trial: What is tried.
        last: Who tried last.
        since_peers: Iterations since places were changed.
        move: A change of places that is not judged yet.
        period: For how many iterations places stay by now.
        disk_most_s: Bytes a second that the disk delivered when jobs waited for it; infinite: they have not.
    """

    jobs: Mapping[str, Climber] = field(default_factory=dict)
    silent: Mapping[str, Climber] = field(default_factory=dict)
    beside: GroupTime = _NOBODY
    trial: Trial | None = None
    last: str = ""
    since_peers: int = PEER_PERIOD
    move: Move | None = None
    period: int = PEER_PERIOD
    disk_most_s: float = math.inf

    def knows(self, job: str) -> bool:
        """Whether a job that can spill is here, silent or not."""
        return job in self.jobs or job in self.silent


Answer = tuple[Spilling, Mapping[str, Keep]]


def step(state: Spilling, event: Use | Left | Silent) -> Answer:
    """What follows from an event: what jobs are to do from their next iteration on, of those that are to change."""
    if isinstance(event, Silent):
        if event.job not in state.jobs:
            return state, {}
        silent = {**state.silent, event.job: state.jobs[event.job]}
        return _anew(replace(state, jobs=_without(state.jobs, event.job), silent=silent)), {}
    if isinstance(event, Left):
        rest, silent = _without(state.jobs, event.job), _without(state.silent, event.job)
        state = replace(state, silent=silent)
        return (_anew(replace(state, jobs=rest)) if len(rest) < len(state.jobs) else state), {}
    if event.job in state.silent:
        return _raised_alone(state, event, state.silent[event.job])
    if event.job not in state.jobs:
        new = Climber(keep=Keep(spilled=event.spilled))
        state = _anew(replace(state, jobs={**state.jobs, event.job: new}))
        return _raised(state, event, new) if _is_full(event) and event.spilled < 1 else (state, {})
    one = state.jobs[event.job]
    if one.to_drop:
        return _with(state, event.job, replace(one, to_drop=one.to_drop - 1)), {}
    if _is_full(event) and one.keep.spilled < 1:
        return _raised(state, event, one)
    state = _with(state, event.job, replace(one, uses=(*one.uses, event)[-USES_MAX:]))
    if any(len(each.uses) < WINDOW for each in state.jobs.values()):
        return state, {}
    return _judged(state)


def first_share(*, input_bytes: float, other_bytes: float, limit_bytes: float) -> float:
    """The share that a job begins with, so that its memory is filled as far as it is to be.

    Args:
        input_bytes: Its input on this node.
        other_bytes: Memory that it needs besides.
        limit_bytes: What it may have; 0: it has no limit.
    """
    if not limit_bytes or input_bytes <= 0:
        return 0.0
    return min(1.0, max(0.0, (other_bytes + input_bytes - ROOM * limit_bytes) / input_bytes))


def is_full(used_bytes: int, limit_bytes: int) -> bool:
    """Whether memory of a limit, if there is one, has hardly room for more."""
    return limit_bytes > 0 and used_bytes > FULL * limit_bytes


def _without(jobs: Mapping[str, Climber], job: str) -> dict[str, Climber]:
    return {name: one for name, one in jobs.items() if name != job}


def _is_full(use: Use) -> bool:
    return use.input_bytes > 0 and is_full(use.used_bytes, use.limit_bytes)


def _raised_alone(state: Spilling, use: Use, one: Climber) -> Answer:
    """More goes to the disk of a job for which nobody waits, where its memory is nearly full."""
    if not _is_full(use) or one.keep.spilled >= 1:
        return state, {}
    raised = replace(one, keep=replace(one.keep, spilled=_filling(use, one)))
    return replace(state, silent={**state.silent, use.job: raised}), {use.job: raised.keep}


def _filling(use: Use, one: Climber) -> float:
    """The share with which memory is filled as far as it is to be."""
    return min(1.0, one.keep.spilled + (use.used_bytes - ROOM * use.limit_bytes) / use.input_bytes)


def _raised(state: Spilling, use: Use, one: Climber) -> Answer:
    """Memory is nearly full: more goes to the disk at once, and less is not tried again."""
    spilled = _filling(use, one)
    raised = replace(_fresh(one), keep=replace(one.keep, spilled=spilled), least=spilled, direction=-1)
    state = replace(_with(state, use.job, raised), trial=None, move=None)
    return _changed(state), {use.job: raised.keep}


def _judged(state: Spilling) -> Answer:
    """A window is over."""
    cost_s, noise = cost_of([each.uses for each in state.jobs.values()])
    state = _disk_seen(replace(state, since_peers=state.since_peers + WINDOW))
    move, trial = state.move, state.trial
    state = replace(state, move=None, trial=None)
    if move is not None:
        if cost_s > move.cost_s * (1 - LEAST_GAIN):
            return _moved_back(state, move)
        state = replace(state, period=PEER_PERIOD)
    if trial is not None:
        if cost_s > trial.cost_s * (1 - max(LEAST_GAIN, noise)):
            is_unclear = noise > LEAST_GAIN and cost_s < trial.cost_s
            further = _further(state, trial) if is_unclear else None
            if further is not None:
                return further
            placed, places = _placed(state, trial.cost_s)
            back, told = _taken_back(placed, trial, placed.jobs[trial.job])
            return _changed(back, MOVE_DROPPED if places else DROPPED), {**places, **told}
        one = state.jobs[trial.job]
        assert one.step is not None
        state = _with(state, trial.job, replace(one, step=min(LONGEST_STEP, 2 * one.step), has_failed=True))
    placed, told = _placed(state, cost_s)
    if told:
        return _changed(placed, MOVE_DROPPED), told
    return _tried(_thawed(state, cost_s), cost_s)


def cost_of(windows: Sequence[Sequence[Use]]) -> tuple[float, float]:
    """What an iteration of the group costs, and how uncertain that is, as a share.

    The longest of the jobs' iterations, and up to ten times more where memory is waited for.
    """
    longest = max(windows, key=lambda uses: median(use.iteration_s for use in uses))
    times_s = [use.iteration_s for use in longest]
    middle_s = median(times_s)
    cost_s = middle_s * (1 + STALL_WEIGHT * max(0.0, max(map(_stall, windows)) - FREE_STALL))
    return cost_s, (max(times_s) - min(times_s)) / (2 * middle_s) if middle_s else 0.0


def _stall(uses: Sequence[Use]) -> float:
    """The share of the time in which memory was waited for."""
    return sum(use.stall_s for use in uses) / (sum(use.iteration_s for use in uses) or 1.0)


def _further(state: Spilling, trial: Trial) -> Answer | None:
    """Twice as far from where it was, where what was tried makes less of a difference than iterations vary by.

    None: it has gone as far as it goes, or has once found a difference at a longer step.
    """
    one = state.jobs[trial.job]
    assert one.step is not None
    step = 2 * one.step
    spilled = min(1.0, max(_least(one), trial.before + one.direction * step))
    if not one.widens or step > LONGEST_STEP or abs(spilled - one.keep.spilled) < LAST_STEP / 2:
        return None
    keep = replace(one.keep, spilled=spilled)
    state = _with(state, trial.job, replace(one, keep=keep, step=step))
    return _changed(replace(state, trial=trial)), {trial.job: keep}


def _taken_back(state: Spilling, trial: Trial, one: Climber) -> Answer:
    """The share of before, since the other was no better; the next try goes to the other side, then half as far."""
    assert one.step is not None
    keep, step = replace(one.keep, spilled=trial.before), one.step / 2 if one.has_failed else one.step
    back = replace(
        one,
        keep=keep,
        direction=-one.direction,
        has_failed=not one.has_failed,
        widens=one.widens and not one.has_failed,
        step=step if step >= LAST_STEP else None,
        settled_s=trial.cost_s,
    )
    return _changed(_with(state, trial.job, back)), {trial.job: keep}


def _tried(state: Spilling, cost_s: float) -> Answer:
    """The next job in turn tries another share."""
    names = sorted(state.jobs)
    later = [job for job in names if job > state.last]
    for job in (*later, *(job for job in names if job <= state.last)):
        one = state.jobs[job]
        if one.step is None or (not one.keep.spilled and _stall(one.uses) <= FREE_STALL):
            continue  # it has settled, or has all in memory and does not wait for it
        for direction in (one.direction, -one.direction):
            spilled = min(1.0, max(_least(one), one.keep.spilled + direction * one.step))
            if abs(spilled - one.keep.spilled) >= LAST_STEP / 2:
                trial = Trial(job=job, before=one.keep.spilled, cost_s=cost_s)
                keep = replace(one.keep, spilled=spilled)
                # Where memory or an end is in the way of the other side, there is one side to be tried at each step.
                has_failed = one.has_failed or direction != one.direction
                state = _with(state, job, replace(one, keep=keep, direction=direction, has_failed=has_failed))
                return _changed(replace(state, trial=trial, last=job)), {job: keep}
        state = _with(state, job, replace(one, step=None, settled_s=cost_s))  # it can't go anywhere
    return _emptied(state), {}


def _least(one: Climber) -> float:
    """The least share that memory has room for: nothing is tried that would fill it."""
    use = one.uses[-1]
    if not use.limit_bytes or not use.input_bytes:
        return one.least
    room = (ROOM * use.limit_bytes - use.used_bytes) / use.input_bytes
    return max(one.least, min(one.keep.spilled, one.keep.spilled - room))


def _placed(state: Spilling, cost_s: float) -> Answer:
    """Which share of what is read comes from peers, by the equation of an iteration; it costs ``cost_s`` now."""
    last = [one.uses[-1] for one in state.jobs.values()]
    reading = [use for use in last if use.spilled > 0 and use.disk is not None]
    near = [use for use in reading if use.peer is not None]
    if not near or state.since_peers < state.period:
        return state, {}
    time = GroupTime(
        comp_s=state.beside.comp_s + sum(use.comp_s for use in last),
        comm_s=state.beside.comm_s + sum(use.net_s for use in last),
        longest_s=max(state.beside.longest_s, *(use.comp_s + use.net_s for use in last)),
    )
    spilled = sum(use.spilled * use.input_bytes for use in reading)
    to_peers = sum(use.spilled * use.input_bytes for use in near)
    if not to_peers:
        return state, {}
    from_disk, from_peer = map(sum, zip(*(_read_bytes(state.jobs[use.job].uses) for use in reading), strict=True))
    now = min(to_peers, from_peer)
    longest_s = max(median(use.iteration_s for use in one.uses) for one in state.jobs.values())
    # Jobs that read at the same time each see a part of what a place delivers; to all it delivers this at least.
    peers = [(use.spilled * use.input_bytes, use.peer) for use in near if use.peer is not None]
    disks = [(use.spilled * use.input_bytes, use.disk) for use in reading if use.disk is not None]
    peer = _at_least(mean_cost(peers), from_peer, longest_s)
    disk = mean_cost(disks)
    # A disk from which little is read may be quick, and has a rate of its own all the same.
    disk = _at_least(replace(disk, bytes_s=min(disk.bytes_s, state.disk_most_s)), from_disk, longest_s)
    way = Reloading(disk=disk, peer=peer, net_bytes_s=peer.bytes_s)
    best = min(to_peers, best_peer_bytes(time, spilled, way))
    if reloading_s(time, spilled, best, way) > (1 - PEER_GAIN) * reloading_s(time, spilled, now, way):
        return state, {}
    told = {use.job: replace(state.jobs[use.job].keep, by_peer=best / to_peers) for use in near}
    if all(keep == state.jobs[job].keep for job, keep in told.items()):
        return state, {}  # it is asked for already, and is what does not come
    move = Move(before={job: state.jobs[job].keep.by_peer for job in told}, cost_s=cost_s)
    return replace(_told(state, told), since_peers=0, move=move), told


def _told(state: Spilling, told: Mapping[str, Keep]) -> Spilling:
    changed = {job: replace(state.jobs[job], keep=keep) for job, keep in told.items()}
    return replace(state, jobs={**state.jobs, **changed})


def _moved_back(state: Spilling, move: Move) -> Answer:
    """Goes back to the places before, which made an iteration as short; they stay four times as long."""
    told = {job: replace(state.jobs[job].keep, by_peer=share) for job, share in move.before.items()}
    state = replace(_told(state, told), since_peers=0, period=min(LONGEST_PERIOD, LONGER * state.period))
    return _changed(state, MOVE_DROPPED), told


def _disk_seen(state: Spilling) -> Spilling:
    """With what the disk is known to deliver at most, by what it delivered while jobs waited for nothing else."""
    waited = disk_bytes_s = peer_bytes_s = 0.0
    for one in state.jobs.values():
        time_s = sum(use.iteration_s for use in one.uses[1:])
        if time_s > 0:
            from_disk, from_peer = _read_bytes(one.uses)
            waited += sum(use.wait_s for use in one.uses[1:]) / time_s
            disk_bytes_s += from_disk * (len(one.uses) - 1) / time_s
            peer_bytes_s += from_peer * (len(one.uses) - 1) / time_s
    if waited >= WAITED and disk_bytes_s > 0 and disk_bytes_s >= FROM_DISK * (disk_bytes_s + peer_bytes_s):
        return replace(state, disk_most_s=disk_bytes_s)
    return replace(state, disk_most_s=BELIEVED_LESS * state.disk_most_s)


def _read_bytes(uses: Sequence[Use]) -> tuple[float, float]:
    """What a job has read from the disk and from a peer in an iteration of a window, by its own count."""
    first, last, count = uses[0], uses[-1], max(1, len(uses) - 1)
    disk_bytes, peer_bytes = last.disk_bytes - first.disk_bytes, last.peer_bytes - first.peer_bytes
    return max(0, disk_bytes) / count, max(0, peer_bytes) / count


def _at_least(cost: ReadCost, read_bytes: float, in_s: float) -> ReadCost:
    return replace(cost, bytes_s=max(cost.bytes_s, read_bytes / in_s)) if in_s > 0 else cost


def _thawed(state: Spilling, cost_s: float) -> Spilling:
    """Jobs that have settled try again if the cost has moved."""
    jobs = {
        job: _fresh(one) if one.step is None and abs(cost_s - one.settled_s) > THAW * one.settled_s else one
        for job, one in state.jobs.items()
    }
    return replace(state, jobs=jobs)


def _anew(state: Spilling) -> Spilling:
    """The jobs of the node have changed: what was measured says nothing any more."""
    jobs = {job: _fresh(one) for job, one in state.jobs.items()}
    return _changed(Spilling(jobs=jobs, silent=state.silent, beside=state.beside, last=state.last))


def _fresh(one: Climber) -> Climber:
    """A job that tries anew."""
    return replace(one, step=FIRST_STEP, has_failed=False, widens=True)


def _changed(state: Spilling, dropped: int = DROPPED) -> Spilling:
    """The next iterations of all jobs are not judged by."""
    jobs = {job: replace(one, uses=(), to_drop=dropped) for job, one in state.jobs.items()}
    return replace(state, jobs=jobs)


def _emptied(state: Spilling) -> Spilling:
    return replace(state, jobs={job: replace(one, uses=()) for job, one in state.jobs.items()})


def _with(state: Spilling, job: str, one: Climber) -> Spilling:
    return replace(state, jobs={**state.jobs, job: one})
