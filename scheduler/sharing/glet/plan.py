"""A plan: which models a part of which GPU serves, in which batches, how often. PURE."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec


class Portion(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A model on a glet: the requests of its batch, and how many of them a second it serves there."""

    model: str
    batch: int
    rate: float


class Glet(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A part of a GPU, and the models that take turns on it once in a cycle [glet §2.2, Figure 1]."""

    gpu: int
    part_pct: int
    cycle_ms: float
    models: tuple[Portion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All glets that serve something, by GPU, larger parts first."""

    glets: tuple[Glet, ...]

    @property
    def gpus(self) -> int:
        """GPUs in use."""
        return len({glet.gpu for glet in self.glets})

    @property
    def part_pct(self) -> int:
        """Sum of the parts in use, in percent of one GPU."""
        return sum(glet.part_pct for glet in self.glets)

    def gpu_parts(self) -> Mapping[int, int]:
        """Sum of the parts in use of each GPU that has one, in percent."""
        found: dict[int, int] = {}
        for glet in self.glets:
            found[glet.gpu] = found.get(glet.gpu, 0) + glet.part_pct
        return found

    def served(self) -> Mapping[str, float]:
        """Requests a second that each model is served, over all its glets."""
        found: dict[str, float] = {}
        for glet in self.glets:
            for portion in glet.models:
                found[portion.model] = found.get(portion.model, 0.0) + portion.rate
        return found

    def digest(self) -> str:
        """Equal for equal plans, on every machine."""
        return hashlib.sha256(msgspec.json.encode(self.glets)).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No plan: the model that did not fit with the rate that is left of it, and why.

    ``gpus_min``: so many GPUs are needed at least; 0 where that is not known.
    """

    model: str
    left: float
    why: str
    gpus_min: int = 0


def numbered(glets: Iterable[Glet]) -> Plan:
    """A plan whose GPUs in use are 0, 1, 2, ... in the order of their numbers."""
    ordered = sorted(glets, key=lambda glet: (glet.gpu, -glet.part_pct, glet.models))
    numbers = {gpu: at for at, gpu in enumerate(dict.fromkeys(glet.gpu for glet in ordered))}
    return Plan(glets=tuple(msgspec.structs.replace(glet, gpu=numbers[glet.gpu]) for glet in ordered))
