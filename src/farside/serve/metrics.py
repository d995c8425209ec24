"""Prometheus metrics: Triton's names, so that its dashboards go on working, and ours beside them."""

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import CollectorRegistry

from farside.agent.serving.model_file import ModelFile
from farside.scrape import family, registry_of
from farside.serve.description import ModelCounts
from farside.serve.inference import version_of
from farside.serve.service import Service
from farside.serve.status import GletStatus, ServeStatus

_NS_IN_US = 1000
# Triton's counters, whose names lack Prometheus's _total.
_TRITON: tuple[tuple[str, str, Callable[[ModelCounts], float]], ...] = (
    ("nv_inference_request_success", "Number of successful inference requests", lambda c: c.success.count),
    ("nv_inference_request_failure", "Number of failed inference requests", lambda c: c.fail.count),
    ("nv_inference_count", "Number of inferences performed", lambda c: c.rows),
    ("nv_inference_exec_count", "Number of model executions performed", lambda c: c.batches),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds",
        lambda c: (c.success.ns + c.fail.ns) // _NS_IN_US,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds",
        lambda c: c.queue.ns // _NS_IN_US,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds",
        lambda c: c.copied_in.ns // _NS_IN_US,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds",
        lambda c: c.ran.ns // _NS_IN_US,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds",
        lambda c: c.copied_out.ns // _NS_IN_US,
    ),
)
_OUTCOMES = ("met", "late", "dropped", "rejected", "failed", "refused", "cancelled")


def serving_registry(service: Service, status: Callable[[], ServeStatus]) -> CollectorRegistry:
    """All metrics of a deployment, made anew at each scrape."""
    return registry_of(lambda: _collect(service, status()))


def _collect(service: Service, status: ServeStatus) -> Iterable[Metric]:
    for name, text, figure in _TRITON:
        made = Metric(name, text, "unknown")
        for model in service.models.values():
            made.add_sample(name, _labels(model), figure(service.pool.counts[model.name]))
        yield made
    rows = [((m.name, outcome), getattr(m, outcome)) for m in status.models for outcome in _OUTCOMES]
    prefix, counter, gauge = "farside_serving", CounterMetricFamily, GaugeMetricFamily
    yield family(counter, prefix, "requests", "Requests by what became of them.", rows, ("model", "outcome"))
    yield family(
        counter, prefix, "again", "Requests queued again since an executor died, or their model kept failing on it.",
        [(m.name, m.again) for m in status.models], ("model",),
    )  # fmt: skip
    for name, text in (
        ("rate", "Measured requests a second."),
        ("planned_rate", "Requests a second that the plan serves."),
        ("waiting", "Rows that wait for a batch."),
    ):
        yield family(gauge, prefix, name, text, [(m.name, getattr(m, name)) for m in status.models], ("model",))
    yield family(
        gauge, prefix, "slo_seconds", "Time within which requests are to be answered.",
        [(m.name, m.slo_ms / 1000) for m in status.models], ("model",),
    )  # fmt: skip
    yield family(
        gauge, prefix, "latency_p99_seconds", "Of the last 4,096 answers, from arrival.",
        [(m.name, m.p99_ms / 1000) for m in status.models], ("model",),
    )  # fmt: skip
    yield family(
        gauge, prefix, "part", "Share of a device that a part of it is.",
        [(where, share_pct / 100) for where, share_pct in sorted(_parts_pct(status.glets).items())],
        ("device", "models"),
    )  # fmt: skip
    yield family(counter, prefix, "executor_deaths", "Executors that ended unasked.", status.deaths)
    yield family(counter, prefix, "stray_answers", "Answers to batches that were not in flight.", status.stray)
    if status.manager:
        states = Counter("leaving" if lease.leaving else lease.state for lease in status.leases)
        yield family(
            gauge, prefix, "leases", "GPUs of the manager's nodes by state.",
            [((state,), count) for state, count in sorted(states.items())], ("state",),
        )  # fmt: skip
        yield family(gauge, prefix, "manager_up", "1: the manager answers.", 0.0 if status.manager_away else 1.0)
    yield family(gauge, prefix, "has_plan", "1: the measured rates have a plan.", 0.0 if status.plan_problem else 1.0)


def _parts_pct(glets: Iterable[GletStatus]) -> Counter[tuple[int, str]]:
    """Shares of devices by device and models; parts that have the same are one share."""
    found = Counter[tuple[int, str]]()
    for one in glets:
        found[one.glet.gpu, "+".join(part.model for part in one.glet.models)] += one.glet.part_pct
    return found


def _labels(model: ModelFile) -> dict[str, str]:
    return {"model": model.name, "version": version_of(model)}
