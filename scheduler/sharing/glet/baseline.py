"""What glet is compared with: squishy bin packing, the same on even halves, and greedy best fit. PURE."""

from collections.abc import Mapping

from farside.scheduler.sharing.glet.elastic import Packing, Slot
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.profile import MODELS_MAX, WHOLE_PCT
from farside.scheduler.sharing.glet.size import ROUNDING, Fitting, Sizes

HALF_PCT = 50


def squishy(sizes: Sizes, rates: Mapping[str, float], gpus: int, part_pct: int = WHOLE_PCT) -> Plan | Refusal:
    """Squishy bin packing on whole GPUs, or on even halves of them [glet §2.2, §2.4].

    A model that fills devices gets them; what is left of each is merged into the node that it fills most.
    """
    cut = (WHOLE_PCT,) if part_pct == WHOLE_PCT else (part_pct, WHOLE_PCT - part_pct)
    packing = Packing(sizes, gpus, [cut] * gpus)
    free = sorted(packing.unused, key=lambda slot: slot.gpu)
    rests: list[tuple[float, int, str, float]] = []
    for name in sorted(rates, key=lambda each: sizes.rank[each]):
        left, most = rates[name], sizes.best_rate[name][part_pct]
        if left > 0 and (why := sizes.unservable(name, (part_pct,))):
            return Refusal(model=name, left=left, why=why)
        while left >= most * (1 - ROUNDING) and left > 0:
            if not _saturated(packing, free, name):
                return Refusal(model=name, left=left, why=packing.lack_of(name, "no device is left"))
            left -= most
        if left > ROUNDING * most:
            fitting = next(packing.fittings((name,), (left,), part_pct, None))
            rests.append((-fitting.busy_ms / fitting.cycle_ms, sizes.rank[name], name, left))
    nodes: list[Slot] = []
    for _, _, name, left in sorted(rests):
        if not _merged(packing, nodes, name, left):
            node = _alone(packing, free, name, left)
            if node is None:
                why = packing.lack_of(name, "no device is left, and no node takes it as well")
                return Refusal(model=name, left=left, why=why)
            nodes.append(node)
    return packing.plan()


def _next(packing: Packing, free: list[Slot], name: str) -> Slot | None:
    at = next((at for at, slot in enumerate(free) if packing.has_memory(slot, name)), None)
    return free.pop(at) if at is not None else None


def _saturated(packing: Packing, free: list[Slot], name: str) -> bool:
    slot = _next(packing, free, name)
    if slot is None:
        return False
    rate, batch, ms = packing.sizes.saturations(name, slot.part, None)[0]
    packing.put(slot, (name,), (rate,), Fitting((batch,), ms, ms))
    return True


def _alone(packing: Packing, free: list[Slot], name: str, rate: float) -> Slot | None:
    slot = _next(packing, free, name)
    if slot is not None:
        packing.put(slot, (name,), (rate,), next(packing.fittings((name,), (rate,), slot.part, None)))
    return slot


def _merged(packing: Packing, nodes: list[Slot], name: str, rate: float) -> bool:
    """A rest into the node that is fullest with it; False: none takes it."""
    best: tuple[float, Slot, Fitting] | None = None
    for node in nodes:
        if len(node.models) >= MODELS_MAX or name in node.models or not packing.has_memory(node, name):
            continue
        models, rates = (*node.models, name), (*node.rates, rate)
        alone = next(packing.fittings((name,), (rate,), node.part, None))
        fitting = _within(packing, models, rates, node.part, min(node.cycle_ms, alone.cycle_ms))
        if fitting is not None and (best is None or fitting.busy_ms / fitting.cycle_ms > best[0]):
            best = (fitting.busy_ms / fitting.cycle_ms, node, fitting)
    if best is None:
        return False
    _, node, fitting = best
    packing.put(node, (*node.models, name), (*node.rates, rate), fitting)
    return True


def _within(
    packing: Packing, models: tuple[str, ...], rates: tuple[float, ...], part: int, cycle_ms: float
) -> Fitting | None:
    """Batches of all models in one given cycle."""
    busy_ms, batches = 0.0, list[int]()
    for model, rate in zip(models, rates, strict=True):
        times = packing.sizes.latencies(model, part, None)
        batch = max(1, -int(-(rate * cycle_ms / 1000 - ROUNDING) // 1))
        if batch > len(times):
            return None
        busy_ms += times[batch - 1]
        batches.append(batch)
    slo_ms = min(packing.sizes.models[model].slo_ms for model in models)
    if busy_ms > cycle_ms or cycle_ms + busy_ms > slo_ms * (1 + ROUNDING):
        return None
    return Fitting(tuple(batches), busy_ms, cycle_ms)


def greedy(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> Plan | Refusal:
    """Greedy best fit: each model has a part of its own, the smallest that serves its rate [glet §2.4, §5.1].

    Where none does it gets the largest, and the rest again. A part goes to the GPU that has least room beyond it. No
    part is shared in time. Tuning a part by what is measured [glet §2.3] would end at the part that is taken here, as
    latencies of all parts are known: a smaller one does not serve the rate.
    """
    packing = Packing(sizes, gpus)
    for name in sorted(rates, key=lambda each: (rates[each] * sizes.models[each].slo_ms, sizes.rank[each])):
        left = rates[name]
        if left > 0 and (why := sizes.unservable(name)):
            return Refusal(model=name, left=left, why=why)
        while left > 0:
            part = sizes.required(name, left) or max(sizes.parts, key=lambda each: sizes.best_rate[name][each])
            rate = min(left, sizes.best_rate[name][part])
            slot = _best_fit(packing, name, part, rate)
            if slot is None:
                why = packing.lack_of(name, f"no GPU has {part} % and the memory free")
                return Refusal(model=name, left=left, why=why)
            packing.put(slot, (name,), (rate,), next(packing.fittings((name,), (rate,), slot.part, None)))
            left = left - rate if left - rate > ROUNDING * left else 0.0
    return packing.plan()


def _best_fit(packing: Packing, name: str, part: int, rate: float) -> Slot | None:
    """A slot with room for a part that serves a rate; as measured a larger part may serve less, and is none then."""
    served = packing.sizes.best_rate[name]
    fitting = [
        slot
        for slot in packing.free()
        if slot.part >= part
        and (slot.part == WHOLE_PCT or served[slot.part] >= rate * (1 - ROUNDING))
        and packing.has_memory(slot, name)
    ]
    if not fitting:
        return None
    slot = min(fitting, key=lambda each: (each.part, each.gpu))
    return packing.cut(slot, part) if slot.part == WHOLE_PCT and packing.can_cut(part) else slot
