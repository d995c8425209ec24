"""Parser of ``squeue --json``, of Slurm 22.05 and later. PURE.

Later versions write a number as ``{"set": true, "infinite": false, "number": 5}`` and a state as a list, and have other
names for a few keys; both are read.
"""

import math
from typing import Any

import msgspec

from farside.scheduler.slurm.read_text import phase_of
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob, limit_of
from farside.scheduler.slurm.tres import gpus_asked, held_by_node, memory_bytes_of

# Slurm's own stand-ins for no number and for infinity, 32 bits.
_NO_VALUE, _INFINITE = 0xFFFFFFFE, 0xFFFFFFFF


class _Job(msgspec.Struct):
    """The keys that are read, of any version. What one version lacks has a value that says nothing."""

    job_id: int
    job_state: str | list[str]
    state_reason: str
    partition: str
    submit_time: Any
    name: str = ""
    user_name: str = ""
    state_description: str = ""
    eligible_time: Any = 0
    start_time: Any = 0
    end_time: Any = 0
    time_limit: Any = None
    tres_per_job: str = ""
    tres_per_node: str = ""
    tres_per_task: str = ""
    tres_per_socket: str = ""
    tres_req_str: str = ""
    tres_alloc_str: str = ""
    gres_detail: list[str] = []
    node_count: Any = 1
    tasks: Any = 1
    cpus: Any = 0
    nodes: str = ""
    priority: Any = 0
    nice: Any = 0
    admin_comment: str = ""
    restart_cnt: int = 0
    array_task_string: str = ""
    required_nodes: str = ""
    excluded_nodes: str = ""
    features: str = ""
    licenses: str = ""
    resv_name: str = ""
    requeue: bool = False
    batch_flag: bool = False


class _Answer(msgspec.Struct):
    jobs: list[_Job]


_decoder = msgspec.json.Decoder(_Answer)


def jobs_of(text: str) -> tuple[SlurmJob, ...]:
    """All jobs of a text.

    Raises:
        ValueError: It is not what ``squeue --json`` prints.
    """
    try:
        return tuple(map(_job, _decoder.decode(text).jobs))
    except msgspec.MsgspecError as error:
        raise ValueError(f"not what squeue --json prints: {error}") from error


def _job(told: _Job) -> SlurmJob:
    states = [told.job_state] if isinstance(told.job_state, str) else told.job_state
    phase = _phase(states)
    nodes, tasks = _number(told.node_count, 1), _number(told.tasks, 1)
    gpus, model = gpus_asked(
        job=told.tres_per_job, node=told.tres_per_node, task=told.tres_per_task, tres=told.tres_req_str,
        nodes=int(nodes), tasks=int(tasks),
    )  # fmt: skip
    is_holding = phase in (JobPhase.RUNNING, JobPhase.STUCK)
    minutes = _number(told.time_limit, math.inf)
    return SlurmJob(
        job_id=str(told.job_id),
        name=told.name,
        user=told.user_name,
        partitions=tuple(told.partition.split(",")),
        phase=phase,
        reason=told.state_description or told.state_reason,
        submit_s=_moment(told.submit_time),
        eligible_s=_moment(told.eligible_time),
        start_s=_moment(told.start_time) if phase is not JobPhase.WAITING else math.nan,
        end_s=_moment(told.end_time) if phase is JobPhase.OVER else math.nan,
        limit_s=limit_of(minutes * 60.0),
        gpus=gpus,
        gpu_model=model,
        cpus=int(_number(told.cpus, 0)),
        memory_bytes=memory_bytes_of(told.tres_alloc_str or told.tres_req_str),
        held=held_by_node(told.nodes, told.gres_detail, gpus) if is_holding else (),
        priority=int(_number(told.priority, 0)),
        nice=int(_number(told.nice, 0)),
        admin_comment=told.admin_comment,
        restarts=told.restart_cnt,
        is_array=bool(told.array_task_string),
        is_bound=any(
            (
                told.required_nodes, told.excluded_nodes, told.features, told.licenses, told.resv_name,
                told.tres_per_socket,
            )
        ),
        is_requeueable=told.requeue and told.batch_flag,
    )  # fmt: skip


def _phase(states: list[str]) -> JobPhase:
    """Phase by a state and its flags: a job that completes still holds its GPUs, whatever its state is."""
    phases = [phase_of(state) for state in states]
    for phase in (JobPhase.STUCK, JobPhase.RUNNING, JobPhase.WAITING):
        if phase in phases:
            return phase
    return JobPhase.OVER


def _number(value: Any, default: float) -> float:
    if isinstance(value, dict):
        if value.get("infinite"):
            return math.inf
        return _number(value.get("number"), default) if value.get("set") else default
    if isinstance(value, bool) or not isinstance(value, int | float) or value == _NO_VALUE:
        return default
    return math.inf if value == _INFINITE else float(value)


def _moment(value: Any) -> float:
    seconds = _number(value, 0)
    return seconds if 0 < seconds < math.inf else math.nan
