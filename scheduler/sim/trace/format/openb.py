"""Alibaba's ``openb_pod_list_*.csv``: pods of a cluster that shares GPUs.

name, cpu_milli, memory_mib, num_gpu (0 to 8), gpu_milli (the part of each GPU, in thousandths; below 1000 only where
num_gpu is 1), gpu_spec (models that will do, a bar between them; empty: any), qos, pod_phase, creation_time,
deletion_time and scheduled_time (seconds; nothing tells from when, so there are no hours of day).

This simulator gives whole GPUs: a pod that asks for a part of one gets one for itself, and the trace's notes count
them. So shared GPUs load the simulated cluster more than they did the real one. A pod that was still there when the
trace was taken ends then, as its deletion_time says; pods without GPUs, or never scheduled, are left out. ``qos`` (BE,
Burstable, LS, Guaranteed) might say which may be preempted, but the documentation does not: all may.
"""

import math

from farside.scheduler.sim.trace.format.row import LeftOut, Noted, Row
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Logged, status_of
from farside.scheduler.state import Job
from farside.units import MIB

_PART_OF_A_GPU = "ask for a part of a GPU, get a whole one"
_NO_GPU = LeftOut("left out: ask for no GPU")
_NEVER_RAN = LeftOut("left out: never scheduled")
_NO_END = LeftOut("left out: no end is recorded")


def to_job(row: Row) -> TraceJob | LeftOut | Noted:
    """Pod with GPUs. See above for parts of GPUs."""
    gpus = row.gpus("num_gpu", lowest=0)
    if not gpus:
        return _NO_GPU
    if not row.has("scheduled_time"):
        return _NEVER_RAN
    if not row.has("deletion_time"):
        return _NO_END
    gpu_milli = row.whole("gpu_milli", 1000, highest=1000)
    cpu_milli = row.real("cpu_milli", 0.0, highest=1e9)
    memory_mib = row.real("memory_mib", 0.0, highest=1e9)
    job = Job(
        job_id=row.key("name"),
        sequence=row.ordinal,
        submit_s=row.moment("creation_time"),
        gpus=gpus,
        cpus_per_gpu=cpu_milli / 1000 / gpus,
        memory_bytes_per_gpu=memory_mib * MIB / gpus,
        gpu_model=row.text("gpu_spec") if row.has("gpu_spec") else "",
    )
    found = TraceJob(job=job, duration_s=row.between_s("scheduled_time", "deletion_time"), line=row.line)
    return Noted(found, _PART_OF_A_GPU) if gpu_milli < 1000 else found


def to_logged(row: Row) -> Logged | LeftOut:
    """Pod that was scheduled and has ended, with GPUs or without. A part of a GPU counts as one."""
    if not row.has("scheduled_time"):
        return _NEVER_RAN
    if not row.has("deletion_time"):
        return _NO_END
    return Logged(
        job_id=row.key("name"),
        submit_s=row.moment("creation_time"),
        start_s=row.moment("scheduled_time"),
        duration_s=row.between_s("scheduled_time", "deletion_time"),
        gpus=row.gpus("num_gpu", lowest=0),
        cpus=row.real("cpu_milli", math.nan, highest=1e9) / 1000,
        status=status_of(row.cell("pod_phase")),
        status_word=row.cell("pod_phase"),
        line=row.line,
    )
