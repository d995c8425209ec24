"""What is known of models and devices: latency by batch and part, memory, and the parts that a device offers. PURE.

Times in ms, rates in requests a second, parts in percent of a device. A batch of b requests of a model takes
L(b, p, F) = latency + (F - 1) * slowed on a part p beside a neighbour that slows it by the factor F [glet §4.3, §4.4].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

WHOLE_PCT = 100
GLETS_MAX = 2  # of a GPU [glet §4.3 line 18]
MODELS_MAX = 3  # of a glet

# A model and the batch in which a glet runs it.
Load = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A model with its promise, and what was measured of it.

    ``latency_ms`` has, for each part, the time of a batch of 1, 2, 3, ... requests alone; ``slowed_ms`` that share of
    it which a neighbour makes longer. ``max_batch`` is the largest batch of all parts.
    """

    name: str
    slo_ms: float
    memory_mb: float
    latency_ms: Mapping[int, tuple[float, ...]]
    slowed_ms: Mapping[int, tuple[float, ...]]

    @property
    def max_batch(self) -> int:
        """Requests of the largest batch."""
        return len(next(iter(self.latency_ms.values())))

    @property
    def shortest_slo_ms(self) -> float:
        """The shortest SLO that any batch can meet: a cycle in which one request arrives, and its execution."""
        return 2 * min(times[0] for times in self.latency_ms.values())


def slowed(model: ModelProfile, times: float) -> ModelProfile:
    """A model whose batches take ``times`` as long on each part."""
    return replace(
        model,
        latency_ms={part: tuple(times * ms for ms in each) for part, each in model.latency_ms.items()},
        slowed_ms={part: tuple(times * ms for ms in each) for part, each in model.slowed_ms.items()},
    )


class Interference(Protocol):
    """How much slower a batch is while a neighbour runs on the other part of its GPU."""

    def pressure(self, part_pct: int, loads: Sequence[Load]) -> object:
        """What a neighbour with these models and batches on a part does to others; hashable. None without models."""
        ...

    def factors(self, model: str, part_pct: int, pressure: object) -> Sequence[float]:
        """Factor F >= 1 of batches of 1, 2, 3, ... under a pressure: the worst over the neighbour's models."""
        ...

    def least(self, model: str, part_pct: int, batches: int) -> Sequence[float]:
        """Factors F >= 1 of batches of 1, 2, ..., ``batches`` that no neighbour on the rest of a GPU is below."""
        ...


class NoInterference:
    """Neighbours do not matter."""

    def pressure(self, part_pct: int, loads: Sequence[Load]) -> object:
        """None."""
        return None

    def factors(self, model: str, part_pct: int, pressure: object) -> Sequence[float]:
        """Not asked for, as there is never a pressure."""
        raise AssertionError("there is no pressure without interference")

    def least(self, model: str, part_pct: int, batches: int) -> Sequence[float]:
        """1 for each batch."""
        return (1.0,) * batches


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A kind of GPU: the ways to cut it (each adds up to 100, larger part first), its memory, and interference."""

    name: str
    cuts: tuple[tuple[int, ...], ...]
    memory_mb: float
    process_mb: float
    interference: Interference

    @property
    def parts(self) -> tuple[int, ...]:
        """All parts that any cut has, in ascending order."""
        return tuple(sorted({part for cut in self.cuts for part in cut}))


def cuts_of(parts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The whole device, and each pair of measured parts that adds up to it, the most unequal last."""
    known = set(parts)
    pairs = [(part, WHOLE_PCT - part) for part in known if part < WHOLE_PCT and part >= WHOLE_PCT - part in known]
    return ((WHOLE_PCT,), *sorted(pairs))


def between(points: Mapping[int, float], largest: int) -> tuple[float, ...]:
    """Values for 1, 2, ..., ``largest`` from those at some batches, linear between them; constant below the first."""
    known = sorted(points)
    found: list[float] = []
    at = 0
    for batch in range(1, largest + 1):
        while at + 1 < len(known) and known[at + 1] <= batch:
            at += 1
        low, high = known[at], known[min(at + 1, len(known) - 1)]
        if batch <= low or low == high:
            found.append(points[low])
        else:
            found.append(points[low] + (points[high] - points[low]) * (batch - low) / (high - low))
    return tuple(found)
