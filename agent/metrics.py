"""The agent's Prometheus metrics, made from its status at each scrape.

A scrape reads the last picture that was published and asks nothing of the node, as it holds up the event loop.
"""

from collections.abc import Iterator
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from farside.agent import messages as m
from farside.agent.status import AgentStatus
from farside.scrape import family

_gauge = partial(family, GaugeMetricFamily, "farside_agent")
_counter = partial(family, CounterMetricFamily, "farside_agent")


def agent_metrics(status: AgentStatus, *, names_jobs: bool) -> Iterator[Metric]:
    """All metrics of this moment; ``names_jobs``: with the jobs that have GPUs, and their users. [L5]"""
    yield _gauge("manager_connected", "1 while the manager has welcomed this agent.", float(status.connected))
    text = "1 while the manager that welcomed this agent could not prove itself."
    yield _gauge("manager_unproved", text, float(status.connected and not status.is_manager_proved))
    yield _gauge("memory_bytes", "Memory of the node.", status.memory_bytes)
    yield _gauge("headroom_bytes", "Memory that jobs may still get.", status.headroom_bytes)
    yield _gauge("tasks", "Tasks that are not forgotten, by state.", status.task_counts.items(), ("state",))
    yield _pressure(status.psi)
    yield from _services(status)
    yield from _gpus(status)
    if names_jobs:
        holders = (((held.gpu, held.part, held.job, held.user), 1.0) for held in status.gpu_holders)
        text = "1 while a task of this job has this GPU, or this part of it."
        yield _gauge("gpu_job_info", text, holders, ("gpu", "part", "job", "user"))


def _services(status: AgentStatus) -> Iterator[Metric]:
    rows = (((service, name), value) for service, found in status.services.items() for name, value in found.items())
    yield _gauge("service", "Figures of node services.", rows, ("service", "figure"))
    text = "How often what a service said, or was told, could not be used."
    yield _counter("service_faults", text, status.service_faults.items(), ("service",))


def _pressure(psi: m.Psi) -> Metric:
    rows = (
        (("memory", "some"), psi.memory_some_pct),
        (("memory", "full"), psi.memory_full_pct),
        (("cpu", "some"), psi.cpu_some_pct),
        (("io", "full"), psi.io_full_pct),
    )
    text = "Share of the last 10 s in which programs waited."
    return _gauge("pressure_ratio", text, ((at, _ratio(value)) for at, value in rows), ("resource", "kind"))


def _gpus(status: AgentStatus) -> Iterator[Metric]:
    gpus, used = status.gpus, status.gpus_in_use
    text = "1 if a driver has GPUs that the agent does not find."
    yield _gauge("gpus_unseen", text, float(bool(status.gpus_unseen)))
    names = (((gpu.index, gpu.model, gpu.uuid or ""), 1.0) for gpu in gpus)
    yield _gauge("gpu_info", "1; uuid is empty of a declared GPU.", names, ("gpu", "model", "uuid"))
    health = (((gpu.index, gpu.model), float(gpu.healthy)) for gpu in gpus)
    yield _gauge("gpu_healthy", "1 while tasks may have this GPU.", health, ("gpu", "model"))
    in_use = ((gpu.index, float(gpu.index in used)) for gpu in gpus)
    yield _gauge("gpu_in_use", "1 while a task has this GPU.", in_use, ("gpu",))
    busy = ((gpu.index, _ratio(gpu.busy_pct)) for gpu in gpus)
    yield _gauge("gpu_busy_ratio", "Share of time with a kernel running.", busy, ("gpu",))
    yield _gauge("gpu_power_watts", "Power drawn.", ((gpu.index, gpu.power_w) for gpu in gpus), ("gpu",))
    memory = ((gpu.index, gpu.memory_used_bytes) for gpu in gpus)
    yield _gauge("gpu_memory_used_bytes", "Memory in use.", memory, ("gpu",))


def _ratio(value_pct: float | None) -> float | None:
    return None if value_pct is None else value_pct / 100
