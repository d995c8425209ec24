"""The agent's Prometheus metrics, made from its status at each scrape.

A scrape reads the last picture that was published and asks nothing of the node, as it holds up the event loop.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from farside.agent.status import AgentStatus


def agent_metrics(status: AgentStatus) -> Iterator[Metric]:
    """All metrics of this moment."""
    for name, text, value in (
        ("manager_connected", "1 while the manager has welcomed this agent.", float(status.connected)),
        ("memory_bytes", "Memory of the node.", status.memory_bytes),
        ("headroom_bytes", "Memory that jobs may still get.", status.headroom_bytes),
    ):
        yield GaugeMetricFamily(f"farside_agent_{name}", text, value=value)
    yield _tasks(status)
    yield _pressure(status)
    yield from _services(status)
    yield from _gpus(status)


def _tasks(status: AgentStatus) -> Metric:
    family = GaugeMetricFamily("farside_agent_tasks", "Tasks that are not forgotten, by state.", labels=["state"])
    for state, count in status.task_counts.items():
        family.add_metric([state], count)
    return family


def _services(status: AgentStatus) -> Iterator[Metric]:
    figures = GaugeMetricFamily("farside_agent_service", "Figures of node services.", labels=["service", "figure"])
    for service, found in status.services.items():
        for name, value in found.items():
            figures.add_metric([service, name], value)
    text = "How often what a service said, or was told, could not be used."
    faults = CounterMetricFamily("farside_agent_service_faults", text, labels=["service"])
    for service, count in status.service_faults.items():
        faults.add_metric([service], count)
    yield from (figures, faults)


def _pressure(status: AgentStatus) -> Metric:
    psi = status.psi
    family = GaugeMetricFamily(
        "farside_agent_pressure_ratio", "Share of the last 10 s in which programs waited.", labels=["resource", "kind"]
    )
    for resource, kind, value_pct in (
        ("memory", "some", psi.memory_some_pct),
        ("memory", "full", psi.memory_full_pct),
        ("cpu", "some", psi.cpu_some_pct),
        ("io", "full", psi.io_full_pct),
    ):
        if value_pct is not None:
            family.add_metric([resource, kind], value_pct / 100)
    return family


def _gpus(status: AgentStatus) -> Iterator[Metric]:
    health = GaugeMetricFamily("farside_agent_gpu_healthy", "1 while tasks may have this GPU.", labels=["gpu", "model"])
    used = GaugeMetricFamily("farside_agent_gpu_in_use", "1 while a task has this GPU.", labels=["gpu"])
    busy = GaugeMetricFamily("farside_agent_gpu_busy_ratio", "Share of time with a kernel running.", labels=["gpu"])
    power = GaugeMetricFamily("farside_agent_gpu_power_watts", "Power drawn.", labels=["gpu"])
    memory = GaugeMetricFamily("farside_agent_gpu_memory_used_bytes", "Memory in use.", labels=["gpu"])
    for gpu in status.gpus:
        name = str(gpu.index)
        health.add_metric([name, gpu.model], float(gpu.healthy))
        used.add_metric([name], float(gpu.index in status.gpus_in_use))
        for family, value in (
            (busy, None if gpu.busy_pct is None else gpu.busy_pct / 100),
            (power, gpu.power_w),
            (memory, gpu.memory_used_bytes),
        ):
            if value is not None:
                family.add_metric([name], value)
    yield from (health, used, busy, power, memory)
