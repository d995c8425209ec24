"""The checker: whether a plan keeps what it promises, by rules that it reads from nothing that plans. PURE.

It demands all of each rate, the exact SLO, the cycle and the memory, with interference where that is claimed. Only
numbers that differ in the seventh digit count as equal.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from farside.scheduler.sharing.glet.plan import Glet, Plan
from farside.scheduler.sharing.glet.profile import GLETS_MAX, MODELS_MAX, DeviceProfile, ModelProfile

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A rule that a plan breaks: ``rule`` is its letter and number (docs/serving.md), ``where`` a GPU or a model."""

    rule: str
    where: str
    what: str


def check(
    plan: Plan,
    rates: Mapping[str, float],
    models: Mapping[str, ModelProfile],
    device: DeviceProfile,
    gpus: int,
    *,
    with_interference: bool,
) -> tuple[Violation, ...]:
    """All rules that a plan for ``rates`` (planned requests a second by model) on ``gpus`` GPUs breaks; none: sound."""
    by_gpu: dict[int, list[Glet]] = defaultdict(list)
    for glet in plan.glets:
        by_gpu[glet.gpu].append(glet)
    found: list[Violation] = []
    for gpu, glets in sorted(by_gpu.items()):
        faults = [*_gpu_rules(gpu, glets, models, device, gpus)]
        found += faults
        # What a device can't be, and batches that no profile has, slow nobody by a number that is known.
        is_cut = all(fault.rule != "C1" for fault in faults) and all(_is_known(glet, models) for glet in glets)
        for at, glet in enumerate(glets):
            others = [other for other_at, other in enumerate(glets) if other_at != at]
            found += _glet_rules(glet, others if with_interference and is_cut else [], models, device)
    found += _rate_rule(plan, rates)
    return tuple(found)


def memory_mb(glets: Iterable[Glet], models: Mapping[str, ModelProfile], device: DeviceProfile) -> float:
    """What the executors of glets take of a GPU: each its models, and what its process takes besides."""
    return sum(
        device.process_mb + sum(models[portion.model].memory_mb for portion in glet.models if portion.model in models)
        for glet in glets
    )


def exceeds_memory(needed_mb: float, device: DeviceProfile) -> bool:
    """Whether a GPU has less than that, but for rounding."""
    return needed_mb > device.memory_mb * (1 + TOLERANCE)


def _gpu_rules(
    gpu: int, glets: Sequence[Glet], models: Mapping[str, ModelProfile], device: DeviceProfile, gpus: int
) -> Iterator[Violation]:
    where = f"GPU {gpu}"
    if not 0 <= gpu < gpus:
        yield Violation(rule="C1", where=where, what=f"there are {gpus} GPUs")
    parts = sorted((glet.part_pct for glet in glets), reverse=True)
    wanted = Counter(parts)
    if len(glets) > GLETS_MAX or not any(wanted <= Counter(cut) for cut in device.cuts):
        yield Violation(rule="C1", where=where, what=f"the device can't be cut into {'+'.join(map(str, parts))} %")
    needed_mb = memory_mb(glets, models, device)
    if exceeds_memory(needed_mb, device):
        yield Violation(rule="C7", where=where, what=f"needs {needed_mb:g} MB of {device.memory_mb:g}")


def _is_known(glet: Glet, models: Mapping[str, ModelProfile]) -> bool:
    """Whether its models have profiles for its part and its batches."""
    profiles = [(models.get(portion.model), portion.batch) for portion in glet.models]
    return all(
        model is not None and glet.part_pct in model.latency_ms and 1 <= batch <= model.max_batch
        for model, batch in profiles
    )


def _glet_rules(
    glet: Glet, others: Sequence[Glet], models: Mapping[str, ModelProfile], device: DeviceProfile
) -> Iterator[Violation]:
    where = f"GPU {glet.gpu}, {glet.part_pct} %"
    names = [portion.model for portion in glet.models]
    if len(set(names)) != len(names) or not 1 <= len(names) <= MODELS_MAX:
        yield Violation(rule="C2", where=where, what=f"has {len(names)} models, each may be there once, three at most")
    busy_ms = 0.0
    for portion in glet.models:
        model = models.get(portion.model)
        if model is None or glet.part_pct not in model.latency_ms:
            yield Violation(rule="C1", where=where, what=f"{portion.model} has no profile for this part")
            return
        if not 1 <= portion.batch <= model.max_batch:
            yield Violation(rule="C2", where=where, what=f"{portion.model}: a batch of {portion.batch}")
            return
        arriving = portion.rate * glet.cycle_ms / 1000
        if portion.rate < 0 or portion.batch < arriving * (1 - TOLERANCE):
            yield Violation(
                rule="C3", where=where, what=f"{portion.model}: {arriving:.3f} arrive for a batch of {portion.batch}"
            )
        busy_ms += _latency_ms(model, portion.batch, glet, others, device)
    if busy_ms > glet.cycle_ms * (1 + TOLERANCE):
        yield Violation(rule="C4", where=where, what=f"{busy_ms:.3f} ms of work in a cycle of {glet.cycle_ms:.3f} ms")
    for portion in glet.models:
        slo_ms = models[portion.model].slo_ms
        if glet.cycle_ms + busy_ms > slo_ms * (1 + TOLERANCE):
            late_ms = glet.cycle_ms + busy_ms
            yield Violation(rule="C5", where=where, what=f"{portion.model}: {late_ms:.3f} ms of {slo_ms:g} ms")


def _latency_ms(model: ModelProfile, batch: int, glet: Glet, others: Sequence[Glet], device: DeviceProfile) -> float:
    alone_ms, slowed_ms = model.latency_ms[glet.part_pct][batch - 1], model.slowed_ms[glet.part_pct][batch - 1]
    factor = 1.0
    for other in others:
        for portion in other.models:
            pressure = device.interference.pressure(other.part_pct, [(portion.model, portion.batch)])
            if pressure is not None:
                factor = max(factor, device.interference.factors(model.name, glet.part_pct, pressure)[batch - 1])
    return alone_ms + (factor - 1) * slowed_ms


def _rate_rule(plan: Plan, rates: Mapping[str, float]) -> Iterator[Violation]:
    served: dict[str, float] = defaultdict(float)
    for glet in plan.glets:
        for portion in glet.models:
            served[portion.model] += portion.rate
    for name, rate in rates.items():
        if served[name] < rate * (1 - TOLERANCE):
            yield Violation(rule="C6", where=name, what=f"{served[name]:.3f} of {rate:g} requests a second are served")
