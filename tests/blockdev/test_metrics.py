"""The metrics' families."""

from dataclasses import fields

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from farside.blockdev.metrics import engine_families
from farside.blockdev.total import add_stats
from farside.kmod_shim.engine.binding import EngineStats


def stats(**values: int | tuple[int, ...]) -> EngineStats:
    zero: dict[str, int | tuple[int, ...]] = {
        field.name: (0,) * 32 if field.name.startswith("latency_") else 0 for field in fields(EngineStats)
    }
    return EngineStats(**(zero | values))  # type: ignore[arg-type]  # each name has its own of the two types


class Engine(Collector):
    def __init__(self, told: EngineStats) -> None:
        self.told = told

    def collect(self) -> list[Metric]:
        return list(engine_families(add_stats({}, self.told)))


def samples(told: EngineStats) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(Engine(told))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_pages_are_told_by_where_they_came_from() -> None:
    found = samples(stats(pages_in_remote=7, pages_in_disk=2))

    assert found["farside_blockdev_pages_in_total", (("source", "remote"),)] == 7
    assert found["farside_blockdev_pages_in_total", (("source", "disk"),)] == 2


def test_the_latency_histogram_is_cumulative_in_seconds() -> None:
    buckets = [0] * 32
    buckets[3], buckets[14], buckets[31] = 1, 2, 4

    found = samples(stats(latency_read=tuple(buckets)))

    bounds = {
        float(dict(labels)["le"]): count
        for (name, labels), count in found.items()
        if name == "farside_blockdev_read_latency_seconds_bucket"
    }
    assert bounds[2**15 / 1e9] == 3
    assert bounds[float("inf")] == 7
    assert list(bounds.values()) == sorted(bounds.values())
    assert found["farside_blockdev_read_latency_seconds_count", ()] == 7


def test_every_counter_of_the_engine_is_told() -> None:
    plain = {field.name for field in fields(EngineStats)} - {
        "latency_read", "latency_write", "longest_request_ns", "sleeps", "spins",
    }  # fmt: skip

    found = samples(stats(**dict.fromkeys(plain, 5)))

    assert sum(value == 5 for value in found.values()) == len(plain)
