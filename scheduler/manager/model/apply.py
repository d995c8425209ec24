"""What an entry of the log does to what is known: `apply`. PURE, and the same in every process that reads the log.

How it works
  What was reported or asked and makes no sense (a report about a start that nobody knows, a release of a job that
  runs) changes nothing. What was decided must fit: the leader wrote it knowing all earlier entries about jobs, as it
  alone moves them. One that does not fit means that the log is damaged or two scheduler processes wrote, and that is an
  error, not a surprise to be smoothed over.

  A GPU is held from `JobStarted` until its process is reported gone, or its node joins with another boot id. A node
  that is lost holds on to all of it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from farside.agent.gpu_share import clash
from farside.agent.messages import EXECUTOR, ChangingFacts, Donor, NodeFacts, fields_of
from farside.errors import LocalProtocolError
from farside.scheduler.admission.idle_gpus import IdleWarning, Span
from farside.scheduler.manager.aggregation import state as aggregation
from farside.scheduler.manager.aggregation.orders import AGGREGATOR, offer_of
from farside.scheduler.manager.colocation import state as colocation
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.codec import tag_of
from farside.scheduler.manager.model.lending import memory_left
from farside.scheduler.manager.model.preemption_times import step_of
from farside.scheduler.manager.model.profile import joined, joined_times
from farside.scheduler.manager.model.record import (
    ACTIVE,
    OVER,
    PHASE_OF_ENDING,
    Admission,
    LiveJob,
    LiveNode,
    LiveTask,
    Maintenance,
    MemoryRecall,
    Phase,
    RunInterval,
)
from farside.scheduler.manager.model.state import LiveState, request_of
from farside.scheduler.manager.model.submit_rate import jobs_of
from farside.scheduler.model_zoo import find_model
from farside.scheduler.power.state import Phase as PowerPhase

Touched = tuple[str, ...]
# An agent may report the same twice, or late; a process only ever moves on.
_ORDER: Mapping[log.TaskPhase, int] = {phase: at for at, phase in enumerate(log.TaskPhase)}


def apply(state: LiveState, entry: log.Entry) -> Touched:
    """Moves ``state`` on by one entry, the next; returns the jobs that something happened to.

    Raises:
        LocalProtocolError: It is not the next, or was decided against what stands before it.
    """
    # Places have no gaps, so each entry is applied once and in order, or the reader fails.
    if entry.seq <= state.seq:
        raise LocalProtocolError(f"entry {entry.seq} comes after entry {state.seq} of the log")
    if entry.seq > state.seq + 1:
        hint = "start the manager again: it begins at the store's snapshot; if that fails, restore a backup"
        raise LocalProtocolError(f"entries {state.seq + 1} to {entry.seq - 1} of the log are missing", hint=hint)
    touched = _APPLIERS[type(entry.event)](state, entry.event, entry) or ()
    state.seq, state.at_s = entry.seq, max(state.at_s, entry.at_s)
    return touched


def _misfit(entry: log.Entry, what: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"entry {entry.seq} of the log, {tag_of(type(entry.event))}, does not fit: {what}",
        hint="restore a backup, and report this",
    )


def _job(state: LiveState, entry: log.Entry, job_id: str, *phases: Phase) -> LiveJob:
    job = state.jobs.get(job_id)
    if job is None:
        raise _misfit(entry, f"there is no job {job_id}")
    if job.phase not in phases:
        raise _misfit(entry, f"job {job_id} is {job.phase}")
    return job


def _put(state: LiveState, job: LiveJob) -> Touched:
    """Puts what a job has become; it is the one that is touched."""
    state.jobs[job.job_id] = job
    return (job.job_id,)


def _change_node(state: LiveState, name: str, **facts: Any) -> None:
    """Changes what is known of a node, if there is one of that name."""
    if name in state.nodes:
        state.nodes[name] = replace(state.nodes[name], **facts)


# ---------------------------------------------------------------------------------------------- jobs, as asked


def _submitted(state: LiveState, event: log.JobSubmitted, entry: log.Entry) -> Touched:
    number, state.next_number = state.next_number, state.next_number + 1
    ids = (str(number),) if event.count == 1 else tuple(f"{number}_{at}" for at in range(event.count))
    phase = Phase.HELD if event.is_held else Phase.WAITING
    reason = f"held by {event.user}" if event.is_held else "submitted"
    for job_id in ids:
        if event.spec.aggregation:
            state.aggregation.want(job_id, event.spec.aggregators)
        if event.spec.colocate:
            state.colocation.submitted(job_id, int(event.spec.memory_bytes), event.spec.worker_range)
        state.jobs[job_id] = LiveJob(
            job_id=job_id,
            sequence=state.next_sequence,
            spec=event.spec,
            user=event.user,
            uid=event.uid,
            submit_s=entry.at_s,
            phase=phase,
            since_s=entry.at_s,
            submitted_at=entry.seq,
            reason=reason,
            held_by=event.user if event.is_held else "",
        )
        state.next_sequence += 1
        state.unfinished[job_id] = None
        for other in event.spec.after:
            if other in state.unfinished:
                state.dependents.setdefault(other, []).append(job_id)
    state.submitted[entry.seq] = ids
    size_bytes = event.spec.size_bytes
    state.queued.come(entry.seq, event.user, len(ids), size_bytes)
    state.submit_rates.come(event.user, jobs_of(len(ids), size_bytes), max(entry.at_s, state.at_s))
    _remember(state, event, entry)
    return ids


def _remember(state: LiveState, event: log.JobSubmitted | log.NodesReserved, entry: log.Entry) -> None:
    if event.key:
        state.requests.setdefault(request_of(event), entry.seq)


def _cancel(state: LiveState, event: log.CancelRequested, entry: log.Entry) -> Touched:
    job = state.jobs.get(event.job_id)
    if job is None or job.is_over or job.cancelled_by:
        return ()
    return _put(state, replace(job, cancelled_by=event.by))


def _extend(state: LiveState, event: log.LimitExtended, entry: log.Entry) -> Touched:
    job = state.jobs.get(event.job_id)
    if job is None or job.phase is not Phase.RUNNING or job.start != event.start or job.cancelled_by:
        return ()
    if job.started_s + event.time_limit_s <= job.limit_at_s:
        return ()
    return _put(state, replace(job, extended_s=event.time_limit_s))


def _hold(state: LiveState, event: log.HoldRequested, entry: log.Entry) -> Touched:
    state.submit_rates.come(event.by, 1, max(entry.at_s, state.at_s))
    job = state.jobs.get(event.job_id)
    if job is None or job.is_over or job.held_by:
        return ()
    held = replace(job, held_by=event.by)
    if job.phase is Phase.WAITING:
        held = _waited(replace(held, phase=Phase.HELD, reason=f"held by {event.by}"), job, entry.at_s)
    return _put(state, held)


def _release(state: LiveState, event: log.ReleaseRequested, entry: log.Entry) -> Touched:
    state.submit_rates.come(event.by, 1, max(entry.at_s, state.at_s))
    job = state.jobs.get(event.job_id)
    if job is None or not job.held_by:
        return ()
    free = replace(job, held_by="")
    if job.phase is Phase.HELD:
        free = replace(free, phase=Phase.WAITING, since_s=entry.at_s, reason=f"released by {event.by}")
    return _put(state, free)


def _idle(job: LiveJob, reason: str) -> LiveJob:
    """A job without a place: it waits, or is held if somebody asked for that meanwhile."""
    if job.held_by:
        return replace(job, phase=Phase.HELD, places=(), recalls=(), reason=f"held by {job.held_by}; {reason}")
    return replace(job, phase=Phase.WAITING, places=(), recalls=(), reason=reason)


def _waited(after: LiveJob, before: LiveJob, now_s: float) -> LiveJob:
    return replace(after, waited_s=before.waited_s + (now_s - before.since_s), since_s=now_s)


# ---------------------------------------------------------------------------------------------- nodes, as reported


def _joined(state: LiveState, event: log.NodeJoined, entry: log.Entry) -> Touched:
    before = state.nodes.get(event.node)
    touched: Touched = ()
    if before is not None and before.boot_id != event.boot_id:
        touched = _forget_processes(state, before)
        before = state.nodes[event.node]
    # Readers compare this number in place of the lists of donors (`DonorRing`).
    state.donors_version += event.donor is not None or (before is not None and before.donor is not None)
    facts = fields_of(NodeFacts, event)
    if before is None:
        now = LiveNode(name=event.node, address=event.address, joined_s=entry.at_s, **facts)
    else:
        here = {"is_up": True, "lost_reason": "", "address": event.address, "joined_s": entry.at_s}
        now = replace(before, **here, **facts)
    state.nodes[event.node] = _vouched(now, before or now, state.admissions.get(event.node, Admission()))
    _follow_recalls(state, event.node, entry.at_s)
    return touched


def _vouched(now: LiveNode, before: LiveNode, admission: Admission) -> LiveNode:
    """The node with what somebody vouched for: its invitation, or what it said before, or what it says at first."""
    if now.vouched_gpus is not None and now.vouched_memory_bytes is not None:
        return now
    gpus = len(before.gpus) if admission.gpus is None else admission.gpus
    memory_bytes = before.memory_bytes if admission.memory_bytes is None else admission.memory_bytes
    return replace(now, vouched_gpus=gpus, vouched_memory_bytes=memory_bytes)


def _forget_processes(state: LiveState, node: LiveNode) -> Touched:
    """Calls all processes of a node lost: it has booted."""
    touched: dict[str, None] = {}
    for key in node.tasks:
        task = state.task(key)
        if task is not None and not task.is_gone:
            _keep_task(state, replace(task, phase=log.TaskPhase.LOST, cause="its node has booted"))
            touched[task.job_id] = None
    return tuple(touched)


def _changed(state: LiveState, event: log.NodeChanged, entry: log.Entry) -> None:
    if event.node in state.nodes:
        state.donors_version += _address(state.nodes[event.node]) != _address(event)
        _change_node(state, event.node, **fields_of(ChangingFacts, event))
        _follow_recalls(state, event.node, entry.at_s)


def _follow_recalls(state: LiveState, name: str, now_s: float) -> None:
    """Bounds a donor that took memory back for jobs by what all jobs there leave now, never more tightly than ordered.

    Others may have ended since, or have come.
    """
    node = state.nodes.get(name)
    if node is None or not node.recalls:
        return
    left_bytes = memory_left(state, node)
    recalls = ((job_id, one) for job_id in node.recalls for one in state.jobs[job_id].recalls if one.node == name)
    followed = {job_id: max(one.lend_bytes, left_bytes) for job_id, one in recalls}
    if followed != node.recalls:
        _change_node(state, name, recalls=followed)
    _come_back(state, state.nodes[name], now_s)


def _come_back(state: LiveState, node: LiveNode, now_s: float) -> None:
    """Notes what its donor has taken back by now, and how long that took, also where its job waits no longer.

    What others have left instead came back without a recall, and says nothing of how long one takes. Nor does a node
    that is away: what its donor has lent is not known then.
    """
    for job_id in node.recalls if node.is_up else ():
        job = state.jobs[job_id]
        after = tuple(
            replace(one, back_s=now_s)
            if one.node == node.name and not one.is_back and node.borrowed_bytes <= node.recalls[job_id]
            else one
            for one in job.recalls
        )
        if after != job.recalls:
            state.jobs[job_id] = replace(job, recalls=after)
            new = (one for one in after if one.back_s == now_s and one not in job.recalls)
            for one in (one for one in new if node.borrowed_bytes <= one.lend_bytes):
                state.recall_times.add(one.node, one.recalled_bytes, now_s - one.ordered_s)


def _address(facts: ChangingFacts) -> Donor | None:
    """Where the node's donor is reached, without what it lends, which moves all the time."""
    return None if facts.donor is None else facts.donor.address


def _service_changed(state: LiveState, event: log.ServiceChanged, entry: log.Entry) -> None:
    if event.node in state.nodes:
        kept = {**state.nodes[event.node].services, event.name: event.raw}
        _change_node(state, event.node, services={name: raw for name, raw in sorted(kept.items()) if raw})
        if event.name == AGGREGATOR:
            node = state.nodes[event.node]
            offer = offer_of(event.raw, cpus=node.cpus, memory_bytes=node.memory_bytes)
            state.aggregation.offered(event.node, offer)
        if event.name == EXECUTOR:
            is_there = state.nodes[event.node].executor.is_there
            state.colocation.executor_told(event.node, entry.at_s, is_there=is_there)


def _invited(state: LiveState, event: log.NodeInvited, entry: log.Entry) -> None:
    figures = {"gpus": event.gpus, "memory_bytes": event.memory_bytes}
    _admit(
        state, event.node, entry, invitation=event.key, expires_s=event.expires_s, is_revoked=False, by=event.by,
        **figures,
    )  # fmt: skip
    # Of a node that has joined before: the new figures count, those that were not given are as they were.
    told = {f"vouched_{name}": value for name, value in figures.items() if value is not None}
    _change_node(state, event.node, **told)


def _keyed(state: LiveState, event: log.NodeKeyed, entry: log.Entry) -> None:
    # Without an invitation it was revoked, or another connection used it, a moment ago: this key must never count.
    if not state.admissions.get(event.node, Admission()).invitation:
        return
    _admit(state, event.node, entry, invitation="", expires_s=0.0, key=event.key)


def _accepted(state: LiveState, event: log.NodeAccepted, entry: log.Entry) -> None:
    _admit(state, event.node, entry, is_accepted=True, is_revoked=False, by=event.by)
    node = state.nodes.get(event.node)
    if node is not None:
        _change_node(state, event.node, vouched_gpus=len(node.gpus), vouched_memory_bytes=node.memory_bytes)


def _revoked(state: LiveState, event: log.NodeRevoked, entry: log.Entry) -> None:
    # Its keys go for good: whoever has one of them needs a new invitation, also after the name is accepted again.
    _admit(
        state, event.node, entry, invitation="", key="", is_accepted=False, is_revoked=True, revoked_entry=entry.seq,
        by=event.by,
    )  # fmt: skip


def _admit(state: LiveState, node: str, entry: log.Entry, **changed: Any) -> None:
    before = state.admissions.get(node, Admission())
    state.admissions = {**state.admissions, node: replace(before, at_s=entry.at_s, **changed)}


def _lost(state: LiveState, event: log.NodeLost, entry: log.Entry) -> Touched:
    node = state.nodes.get(event.node)
    if node is None or not node.is_up:
        return ()
    state.donors_version += node.donor is not None
    state.nodes[node.name] = replace(node, is_up=False, lost_reason=event.reason)
    return state.jobs_on(node.name)


def _drain(state: LiveState, event: log.DrainRequested, entry: log.Entry) -> None:
    _change_node(state, event.node, drain_reason=event.reason or f"drained by {event.by}")


def _undrain(state: LiveState, event: log.UndrainRequested, entry: log.Entry) -> None:
    _change_node(state, event.node, drain_reason="")


def _lending_ordered(state: LiveState, event: log.LendingOrdered, entry: log.Entry) -> None:
    _change_node(state, event.node, lend_at_most_bytes=event.lend_bytes)


def _swap_ordered(state: LiveState, event: log.SwapOrdered, entry: log.Entry) -> None:
    _change_node(state, event.node, swap_ordered_bytes=event.swap_bytes)


def _reserved(state: LiveState, event: log.NodesReserved, entry: log.Entry) -> None:
    reservation_id = f"m{len(state.maintenance) + 1}"
    state.reserved[entry.seq] = reservation_id
    _remember(state, event, entry)
    booked = fields_of(log.NodesReserved, event)
    state.maintenance[reservation_id] = Maintenance(reservation_id=reservation_id, **booked)


def _unreserved(state: LiveState, event: log.ReservationCancelled, entry: log.Entry) -> None:
    found = state.maintenance.get(event.reservation_id)
    if found is not None and found.is_pending(entry.at_s):
        state.maintenance[found.reservation_id] = replace(found, cancelled_by=event.by)


def _aggregated(state: LiveState, event: aggregation.Event, entry: log.Entry) -> Touched:
    misfit = state.aggregation.take(event, entry.seq, entry.generation, max(entry.at_s, state.at_s))
    if misfit:
        raise _misfit(entry, misfit)
    job_id = getattr(event, "job_id", "")
    return (job_id,) if job_id in state.jobs else ()


def _grouped(state: LiveState, event: colocation.Event, entry: log.Entry) -> Touched:
    named = (event.job_id,) if isinstance(event, log.TaskTimed) else tuple(state.colocation.jobs)
    starts = {job_id: state.jobs[job_id].start for job_id in named if job_id in state.jobs}
    misfit = state.colocation.take(event, max(entry.at_s, state.at_s), starts)
    if misfit:
        raise _misfit(entry, misfit)
    return tuple(starts)


def _powered(state: LiveState, event: log.PowerChanged, entry: log.Entry) -> Touched:
    node = state.nodes.get(event.node)
    if node is None or event.generation != state.generation:
        return ()
    note, was_off = event.note, node.power is not None and node.power.phase is PowerPhase.OFF
    is_off = note.phase is PowerPhase.OFF
    after = replace(node, power=note, closed_by=node.closed_by if node.closed_by == note.drain_number else 0)
    if is_off:
        after = replace(after, is_up=False, lost_reason="")
        state.donors_version += node.is_up and node.donor is not None
    state.nodes[node.name] = after
    if is_off is not was_off:
        off = sum(one.power is not None and one.power.phase is PowerPhase.OFF for one in state.nodes.values())
        state.slept.note(entry.at_s, off)
    if note.drain_number and after.closed_by != note.drain_number:
        state.closing[node.name] = None
    else:
        state.closing.pop(node.name, None)
    return () if after.has_power else state.jobs_on(node.name)


def _forgotten(state: LiveState, event: log.HistoryForgotten, entry: log.Entry) -> None:
    """Forgets jobs that are over, but for those that others wait for or that may still have a process somewhere."""
    # A job that waits for a forgotten one would be cancelled as waiting for a job that is not known.
    named = {other for job in state.live_jobs() for other in job.spec.after}
    named.update(job_id for job_id, _, _ in state.stale)
    named.update(key[0] for node in state.nodes.values() for key in node.tasks)
    gone = [
        job_id
        for job_id, job in state.jobs.items()
        if job.is_over and job.end_s < event.before_s and job_id not in named
    ]
    places = {state.jobs[job_id].submitted_at for job_id in gone}
    for job_id in gone:
        del state.jobs[job_id]
    for place in places:
        if not any(job_id in state.jobs for job_id in state.submitted.get(place, ())):
            state.submitted.pop(place, None)
    state.requests = {
        request: at for request, at in state.requests.items() if request.kind != "job" or at in state.submitted
    }
    state.slept.forget(event.before_s)
    state.forgotten_s = max(state.forgotten_s, event.before_s)


def _wanted(state: LiveState, event: log.NodesWanted, entry: log.Entry) -> None:
    state.wanted = event


def _closed(state: LiveState, event: log.NodeClosed, entry: log.Entry) -> None:
    node = state.nodes.get(event.node)
    if node is None:
        raise _misfit(entry, f"there is no node {event.node}")
    if node.power is not None and node.power.drain_number == event.number:  # else it was opened meanwhile
        state.nodes[node.name] = replace(node, closed_by=event.number)
        state.closing.pop(node.name, None)


def _noted(state: LiveState, event: log.AccessRecorded | log.PowerPardoned | log.ServiceTold, entry: log.Entry) -> None:
    """Changes nothing: the entry is for those who read the log."""


def _task(state: LiveState, event: log.TaskChanged, entry: log.Entry) -> Touched:
    task = state.task((event.job_id, event.start, event.rank))
    if task is None or task.node != event.node or task.is_gone or _ORDER[event.phase] < _ORDER[task.phase]:
        return ()
    said = {name: getattr(event, name) for name in ("phase", "exit_code", "signal", "cause", "kind", "iterations")}
    _keep_task(state, replace(task, **said, is_ready=task.is_ready or event.is_ready))
    if event.metered_gpu_s:
        _meter(state, event)
    _time_start(state, event.job_id, entry.at_s)
    return (event.job_id,)


def _profiled(state: LiveState, event: log.TaskProfiled, entry: log.Entry) -> Touched:
    task, job = state.task((event.job_id, event.start, event.rank)), state.jobs.get(event.job_id)
    if task is None or job is None or task.node != event.node:
        return ()
    profile = joined(job.profile, event, is_server=not task.gpus)
    if profile is job.profile:
        return ()
    return _put(state, replace(job, profile=profile))


def _task_idle(state: LiveState, event: log.TaskIdle, entry: log.Entry) -> Touched:
    task = state.task((event.job_id, event.start, event.rank))
    if task is None or task.node != event.node or task.is_gone:
        return ()
    idle = None
    if event.since_s is not None and event.until_s is not None:
        idle = Span(since_s=event.since_s, until_s=event.until_s, below_pct=event.below_pct)
    _keep_task(state, replace(task, idle=idle))
    return (event.job_id,)


def _meter(state: LiveState, event: log.TaskChanged) -> None:
    """What a process drew belongs to the run interval of its start."""
    job = state.jobs[event.job_id]
    stints = list(job.stints)
    run_interval = stints[event.start - 1]
    stints[event.start - 1] = replace(
        run_interval,
        energy_j=run_interval.energy_j + event.energy_j,
        metered_gpu_s=run_interval.metered_gpu_s + event.metered_gpu_s,
    )
    state.jobs[job.job_id] = replace(job, stints=tuple(stints))


def _time_start(state: LiveState, job_id: str, now_s: float) -> None:
    """How long the latest start took: until all ran, and better, until the first said that it makes progress."""
    job = state.jobs[job_id]
    if job.phase is not Phase.RUNNING or job.is_ready:
        return
    # The first figure is when all processes ran; it is corrected once one of them reports progress.
    is_ready = any(task.is_ready for task in job.tasks)
    if not is_ready and not math.isnan(job.resume_s):
        return
    took_s = now_s - job.started_s
    state.jobs[job_id] = replace(job, resume_s=took_s, is_ready=is_ready)
    if job.start > 1 and not job.spec.colocate:
        times = state.preemption_times.resumes[step_of(job.spec.gpus)]
        if math.isnan(job.resume_s):
            times.add(took_s)
        else:
            times.correct(job.resume_s, took_s)


def _keep_task(state: LiveState, task: LiveTask) -> None:
    """Puts what is now known of a process in its place, and gives its GPUs back when it is gone."""
    if task.is_gone:
        node = state.nodes[task.node]
        # A set for the comparison below; GPUs go back only here, so no GPU is given twice while a process may use it.
        gone = {*task.shares}
        shares = tuple(share for share in node.shares if share not in gone) if gone else node.shares
        tasks_there = tuple(key for key in node.tasks if key != task.key)
        state.nodes[node.name] = replace(node, shares=shares, tasks=tasks_there)
    job = state.jobs[task.job_id]
    # A report may be about an earlier start, whose processes are in `stale` and not in the job.
    is_latest = job.start == task.start and bool(job.tasks)
    if is_latest:
        tasks = (*job.tasks[: task.rank], task, *job.tasks[task.rank + 1 :])
        job = replace(job, tasks=tasks)
        if job.phase is Phase.STARTING and all(_ORDER[one.phase] >= _ORDER[log.TaskPhase.RUNNING] for one in tasks):
            job = replace(job, phase=Phase.RUNNING)
        state.jobs[job.job_id] = job
    if task.is_gone:
        state.stale.pop(task.key, None)
    # Kept until its agent reports it gone: the job goes on without it, and its GPUs are still held.
    elif not is_latest or job.phase not in ACTIVE:
        state.stale[task.key] = task


# ---------------------------------------------------------------------------------------------- decided


def _lead(state: LiveState, event: log.SchedulerTookLead, entry: log.Entry) -> None:
    # Generations only grow; an equal one would mean that two processes led at once.
    if event.generation <= state.generation:
        raise _misfit(entry, f"generation {state.generation} has led already")
    state.generation = event.generation


def _allocated(state: LiveState, event: log.JobAllocated, entry: log.Entry) -> Touched:
    # Held a moment ago, when the leader had not read that yet: it takes the place back as soon as it has.
    job = _job(state, entry, event.job_id, Phase.WAITING, Phase.HELD)
    allocated = replace(job, phase=Phase.ALLOCATED, places=event.places, host=event.host, reason=event.reason)
    state.allocated[job.job_id] = None
    state.add_allocation(allocated)
    touched = _put(state, allocated)
    for name in allocated.nodes:
        _follow_recalls(state, name, entry.at_s)
    return touched


def _released(state: LiveState, event: log.AllocationReleased, entry: log.Entry) -> Touched:
    job = _job(state, entry, event.job_id, Phase.ALLOCATED)
    _leave_places(state, job, entry.at_s)
    del state.allocated[job.job_id]
    return _put(state, _idle(job, event.reason))


def _started(state: LiveState, event: log.JobStarted, entry: log.Entry) -> Touched:
    job = _job(state, entry, event.job_id, Phase.ALLOCATED)
    if event.start != job.start + 1:
        raise _misfit(entry, f"job {job.job_id} was started {job.start} times")
    tasks: list[LiveTask] = []
    for place in event.tasks:
        task = LiveTask(job_id=job.job_id, start=event.start, **fields_of(log.TaskAllocation, place))
        node = state.nodes[task.node]
        taken = clash(task.devices, node.shares)
        if taken is not None:
            raise _misfit(entry, f"GPU {taken.gpu} of {node.name} is held by job {taken.holder[0]}")
        now = replace(node, shares=(*node.shares, *task.shares), tasks=(*node.tasks, task.key))
        state.nodes[node.name] = now
        tasks.append(task)
    started = replace(
        job,
        phase=Phase.STARTING,
        start=event.start,
        tasks=tuple(tasks),
        start_s=entry.at_s if job.start == 0 else job.start_s,
        started_s=entry.at_s,
        resume_s=math.nan,
        is_ready=False,
        stop_cause=None,
        exit_code=None,
        stints=(*job.stints, RunInterval(begin_s=entry.at_s, places=job.places, spread=event.spread)),
        master_addr=event.master_addr,
        master_port=event.master_port,
        is_profiled=event.is_profiled,
    )
    ports = ((task.address, task.port) for task in tasks if task.port)
    # Addresses and ports that no other start may get while this job has them.
    state.meetings[job.job_id] = ((event.master_addr, event.master_port), *ports)
    del state.allocated[job.job_id]
    return _put(state, _waited(started, job, entry.at_s))


def _stopping(state: LiveState, event: log.JobStopping, entry: log.Entry) -> Touched:
    job = _job(state, entry, event.job_id, Phase.STARTING, Phase.RUNNING)
    stopping = replace(
        _ran(job, entry.at_s) if event.cause is log.StopCause.PREEMPTED else job,
        phase=Phase.STOPPING,
        stopping_s=entry.at_s,
        stop_cause=event.cause,
        reason=event.reason,
        preemptions=job.preemptions + (event.cause is log.StopCause.PREEMPTED),
    )
    return _put(state, stopping)


def _requeued(state: LiveState, event: log.JobRequeued, entry: log.Entry) -> Touched:
    job = _job(state, entry, event.job_id, *ACTIVE)
    _leave_behind(state, job)
    _leave_places(state, job, entry.at_s)
    # Of one that was extended the next start has the limit that it asked for, whatever it has held its GPU before.
    again_s = job.spec.time_limit_s if job.extended_s else 0.0
    ran = replace(_left(state, job, entry), failures=job.failures + event.is_failure, extended_s=again_s)
    if job.phase is Phase.STOPPING and job.stop_cause is log.StopCause.PREEMPTED:
        ran = replace(ran, pause_s=entry.at_s - job.stopping_s)
        if not job.spec.colocate:
            state.preemption_times.pauses[step_of(job.spec.gpus)].add(ran.pause_s)
    return _put(state, _idle(ran, event.reason))


def _leave_behind(state: LiveState, job: LiveJob) -> None:
    """Keeps a job's processes that it goes on without: only a node that is away can have any."""
    state.stale.update((task.key, task) for task in job.tasks if not task.is_gone)


def _ran(job: LiveJob, now_s: float) -> LiveJob:
    """Counts the time since then, in which it has held GPUs. One that leaves them to another waits, for the cycle."""
    left_s = max(job.since_s, job.stopping_s) if job.is_leaving else now_s
    return replace(
        job,
        executed_s=job.executed_s + (left_s - job.since_s),
        waited_s=job.waited_s + (now_s - left_s),
        held_s=job.held_s + (now_s - job.since_s),
        since_s=now_s,
    )


def _left(state: LiveState, job: LiveJob, entry: log.Entry) -> LiveJob:
    *before, last = job.stints
    last = replace(last, end_s=entry.at_s)
    told = joined_times(task.iterations for task in job.tasks)
    if told is not None:
        models = sorted({state.nodes[place.node].gpu_model for place in last.places})
        last = replace(last, iterations=told, skew=_known_skew(job), gpu_models=tuple(models), ended_at=entry.seq)
    return replace(_ran(job, entry.at_s), stints=(*before, last), idle=None)


def _known_skew(job: LiveJob) -> float:
    """S_J as `model_zoo.skew_of` has it; 0: not known."""
    if job.profile is not None and job.profile.skew > 0:
        return job.profile.skew
    model = find_model(job.spec.model)
    return 0.0 if model is None else model.skew


def _ended(state: LiveState, event: log.JobEnded, entry: log.Entry) -> Touched:
    job = _job(state, entry, event.job_id, *(set(Phase) - OVER))
    if job.phase in ACTIVE:
        _leave_behind(state, job)
        job = _left(state, job, entry)
    else:
        job = _waited(job, job, entry.at_s)
    state.jobs[job.job_id] = replace(
        job,
        phase=PHASE_OF_ENDING[event.ending],
        end_s=entry.at_s,
        exit_code=event.exit_code,
        reason=event.reason,
    )
    del state.unfinished[job.job_id]
    if job.spec.aggregation:
        state.aggregation.forget(job.job_id, entry.seq, max(entry.at_s, state.at_s))
    if job.spec.colocate:
        state.colocation.ended(job.job_id)
    state.queued.leave(job.submitted_at)
    _leave_places(state, job, entry.at_s)
    state.meetings.pop(job.job_id, None)
    state.allocated.pop(job.job_id, None)
    # Jobs that wait for this one are touched too, as they may start now, or never. Others are over, or forgotten.
    return (job.job_id, *(one for one in state.dependents.pop(job.job_id, ()) if one in state.unfinished))


def _idle_warned(state: LiveState, event: log.JobIdleWarned, entry: log.Entry) -> Touched:
    job = _job(state, entry, event.job_id, Phase.RUNNING)
    said = {name: getattr(event, name) for name in ("since_s", "until_s", "below_pct", "ends_s")}
    return _put(state, replace(job, idle=IdleWarning(**said, warned_s=entry.at_s)))


def _idle_lifted(state: LiveState, event: log.IdleWarningLifted, entry: log.Entry) -> Touched:
    return _put(state, replace(_job(state, entry, event.job_id, Phase.RUNNING), idle=None))


def _recalled(state: LiveState, event: log.MemoryRecalled, entry: log.Entry) -> Touched:
    job = _job(state, entry, event.job_id, Phase.ALLOCATED)
    node = state.nodes.get(event.node)
    if node is None or node.name not in job.nodes:
        raise _misfit(entry, f"job {job.job_id} has no place on {event.node}")
    said = {name: getattr(event, name) for name in MemoryRecall.__struct_fields__ if hasattr(event, name)}
    recall = MemoryRecall(**said, ordered_s=entry.at_s)
    state.nodes[node.name] = replace(node, recalls={**node.recalls, job.job_id: event.lend_bytes})
    return _put(state, replace(job, recalls=(*job.recalls, recall)))


def _leave_places(state: LiveState, job: LiveJob, now_s: float) -> None:
    """Its places on nodes are no longer its, and their donors may lend again what they took back for it."""
    state.drop_allocation(job)
    for one in job.recalls:
        if one.node in state.nodes:
            if not one.is_back and state.nodes[one.node].is_up:
                state.recall_times.add_unfinished(one.node, one.recalled_bytes, now_s - one.ordered_s)
            recalls = state.nodes[one.node].recalls
            kept = {job_id: most for job_id, most in recalls.items() if job_id != job.job_id}
            _change_node(state, one.node, recalls=kept)
    for name in job.nodes:
        _follow_recalls(state, name, now_s)


def _promoted(state: LiveState, event: log.JobPromoted, entry: log.Entry) -> None:
    job = _job(state, entry, event.job_id, *(set(Phase) - OVER))
    if job.phase in ACTIVE:
        job = _ran(job, entry.at_s)
    state.jobs[job.job_id] = replace(job, executed_s=0.0, waited_s=0.0, since_s=entry.at_s, reason=event.reason)


_APPLIERS: Mapping[type[Any], Callable[[LiveState, Any, log.Entry], Touched | None]] = {
    log.JobSubmitted: _submitted,
    log.CancelRequested: _cancel,
    log.HoldRequested: _hold,
    log.LimitExtended: _extend,
    log.ReleaseRequested: _release,
    log.NodeJoined: _joined,
    log.NodeChanged: _changed,
    log.ServiceChanged: _service_changed,
    log.ServiceTold: _noted,
    log.NodeLost: _lost,
    log.DrainRequested: _drain,
    log.UndrainRequested: _undrain,
    log.LendingOrdered: _lending_ordered,
    log.SwapOrdered: _swap_ordered,
    log.NodeInvited: _invited,
    log.NodeKeyed: _keyed,
    log.NodeAccepted: _accepted,
    log.NodeRevoked: _revoked,
    log.NodesReserved: _reserved,
    log.ReservationCancelled: _unreserved,
    log.AccessRecorded: _noted,
    log.PowerChanged: _powered,
    log.NodesWanted: _wanted,
    log.HistoryForgotten: _forgotten,
    log.PowerPardoned: _noted,
    log.NodeClosed: _closed,
    log.TaskChanged: _task,
    log.TaskProfiled: _profiled,
    log.TaskIdle: _task_idle,
    log.SchedulerTookLead: _lead,
    log.JobAllocated: _allocated,
    log.AllocationReleased: _released,
    log.JobStarted: _started,
    log.JobStopping: _stopping,
    log.JobRequeued: _requeued,
    log.JobEnded: _ended,
    log.JobPromoted: _promoted,
    log.MemoryRecalled: _recalled,
    log.JobIdleWarned: _idle_warned,
    log.IdleWarningLifted: _idle_lifted,
    log.ModelDeclared: _aggregated,
    log.ChunksMoved: _aggregated,
    log.AggregationMeasured: _aggregated,
    log.ChunksAssigned: _aggregated,
    log.PoolSized: _aggregated,
    log.TaskTimed: _grouped,
    log.GroupsPlanned: _grouped,
}
