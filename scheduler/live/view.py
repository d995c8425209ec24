"""Jobs and nodes as the API and ``--json`` show them: stable keys, documented in docs/manager.md. PURE."""

import math
from collections.abc import Mapping

import msgspec

from farside.agent.gpu_share import Share
from farside.agent.messages import NodeFacts
from farside.scheduler.live.event import Entry, StopCause
from farside.scheduler.live.live_state import LiveState
from farside.scheduler.live.maintenance import still_there
from farside.scheduler.live.record import LiveJob, LiveNode, Maintenance, Phase

Shown = Mapping[str, object]

# A node's facts that are shown as they are; the others are the manager's own business, or shown in another form.
_PLAIN_FACTS = tuple(sorted({*NodeFacts.__struct_fields__} - {"boot_id", "agent", "gpus", "donor", "swap"}))


def show_job(job: LiveJob) -> Shown:
    """A job in short. Times are seconds since the epoch, null before there is one."""
    return {
        "id": job.job_id,
        "name": job.spec.title,
        "user": job.user,
        "account": job.spec.account or job.user,
        "qos": job.spec.qos,
        "state": job.phase.value,
        "exit_code": job.exit_code,
        "gpus": job.spec.gpus,
        "nodes": list(job.nodes),
        "submit_s": job.submit_s,
        "start_s": _or_none(job.start_s),
        "started_s": _or_none(job.started_s),
        "end_s": _or_none(job.end_s),
        "starts": job.start,
        "preemptions": job.preemptions,
        "reason": job.reason,
    }


def show_job_in_full(job: LiveJob, now_s: float) -> Shown:
    """A job with its processes and all that was asked for."""
    return {
        **show_job(job),
        "held_s": job.held_until(now_s),
        "gpu_s": job.held_until(now_s) * job.spec.gpus,
        "failures": job.failures + _has_failed_for_good(job),
        "pause_s": _or_none(job.pause_s),
        "resume_s": _or_none(job.resume_s),
        "profile": _show_profile(job),
        "spec": msgspec.to_builtins(job.spec),
        "tasks": [
            {
                "rank": task.rank,
                "role": task.role,
                "node": task.node,
                "gpus": list(task.gpus),
                "parts": list(task.parts),
                "state": task.phase.value,
                "exit_code": task.exit_code,
                "signal": task.signal,
                "cause": task.cause,
                "output": job.spec.output_path(job.job_id, task.rank),
            }
            for task in job.tasks
        ],
    }


def _has_failed_for_good(job: LiveJob) -> bool:
    """By itself: `LiveJob.failures` has those that were forgiven."""
    return job.phase is Phase.FAILED and job.stop_cause is StopCause.TASK_FAILED


def _show_profile(job: LiveJob) -> Shown | None:
    profile = job.profile
    if profile is None:
        return None
    return {
        "start": profile.start,
        "processes": len(profile.parts),
        "iterations": profile.iterations,
        "iteration_s": profile.iteration_s,
        "model_bytes": profile.model_bytes,
        "skew": profile.skew,
        "problem": profile.problem,
    }


def show_node(node: LiveNode, reserved: str = "") -> Shown:
    """A node, and which job has which of its GPUs, the first where several have parts of one.

    ``reserved``: why and until when nothing starts there; empty: no.
    """
    held: dict[int, list[Share]] = {}
    for share in node.shares:
        held.setdefault(share.gpu, []).append(share)
    facts = msgspec.to_builtins({name: getattr(node, name) for name in _PLAIN_FACTS})
    return {
        **facts,
        "name": node.name,
        "state": node.state,
        "reason": node.why_not or reserved,
        "address": node.address,
        "swap_bytes": node.swap_bytes,
        "swap_own_bytes": node.swap_own_bytes,
        "donor": None if node.donor is None else node.donor.control,
        "gpus": [
            {
                "index": gpu.index,
                "model": gpu.model,
                "healthy": gpu.healthy,
                "reason": gpu.reason,
                "job": held[gpu.index][0].holder[0] if gpu.index in held else None,
                "parts": list(gpu.parts),
                "shares": [{"part": one.part, "job": one.holder[0]} for one in held.get(gpu.index, ())],
            }
            for gpu in node.gpus
        ],
        "free_gpus": len(node.free_devices),
        "joined_s": node.joined_s,
    }


def show_reservation(one: Maintenance, state: LiveState, now_s: float) -> Shown:
    """A reservation; ``jobs`` run on its nodes and may still do so when it begins."""
    return {
        "id": one.reservation_id,
        "state": one.state(now_s),
        "nodes": list(one.nodes),
        "from_s": one.begin_s,
        "to_s": one.end_s,
        "reason": one.reason,
        "by": one.by,
        "jobs": still_there(state, one, now_s) if one.is_pending(now_s) else [],
    }


def show_entry(entry: Entry) -> Shown:
    """One line of a job's or a node's history."""
    return {
        "seq": entry.seq,
        "at_s": entry.at_s,
        "cause": entry.cause,
        "generation": entry.generation,
        "type": type(entry.event).__name__,
        "event": msgspec.to_builtins(entry.event),
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
