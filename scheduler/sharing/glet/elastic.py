"""Algorithm 1: models are placed one after the other on parts of GPUs, which are cut as they want [glet §4.3]. PURE.

After each step every glet that is used keeps its cycle, its SLOs and its memory beside its neighbour as it is then.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion, Refusal, numbered
from farside.scheduler.sharing.glet.profile import MODELS_MAX, WHOLE_PCT
from farside.scheduler.sharing.glet.size import ROUNDING, Knee, Sizes

_TURNS_BASE, _TURNS_A_MODEL = 40, 4
_REFITS_MAX = 4
_LEAST_RATE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How Algorithm 1 is read: the knee, and whether merging is tried before a part of its own or after."""

    knee: Knee = "chord"
    merge_first: bool = True


class Slot:
    """A part of a GPU while a plan is made: the models on it with batch and rate, and its cycle."""

    __slots__ = ("batches", "busy_ms", "cycle_ms", "gpu", "models", "neighbour", "part", "pressure", "rates")

    def __init__(self, gpu: int, part: int) -> None:
        self.gpu, self.part = gpu, part
        self.neighbour: Slot | None = None
        self.models: tuple[str, ...] = ()
        self.rates: tuple[float, ...] = ()
        self.batches: tuple[int, ...] = ()
        self.cycle_ms = self.busy_ms = 0.0
        self.pressure: object = None


@dataclass(frozen=True, slots=True)
class Fitting:
    """Batches of some models on a part, the work that they are, and the longest cycle that keeps all promises."""

    batches: tuple[int, ...]
    busy_ms: float
    cycle_ms: float


class Packing:
    """Slots of GPUs, and what of them is sound."""

    def __init__(self, sizes: Sizes, gpus: int, cuts: Sequence[Sequence[int]] | None = None) -> None:
        self.sizes, self.gpus = sizes, gpus
        self.slots: list[list[Slot]] = []
        for gpu in range(gpus):
            self.slots.append([Slot(gpu, part) for part in (cuts[gpu] if cuts is not None else (WHOLE_PCT,))])
            self._join(gpu)
        self._pairs = {part for cut in sizes.device.cuts if len(cut) > 1 for part in cut}

    def used(self) -> list[Slot]:
        """Slots with models, fullest first."""
        found = [slot for slots in self.slots for slot in slots if slot.models]
        return sorted(found, key=lambda slot: (-slot.busy_ms / slot.cycle_ms, slot.gpu, -slot.part))

    def free(self) -> Iterator[Slot]:
        """Slots without models; of whole GPUs the first only, as all are alike."""
        has_whole = False
        for slots in self.slots:
            for slot in slots:
                if not slot.models:
                    if slot.part == WHOLE_PCT:
                        if has_whole:
                            continue
                        has_whole = True
                    yield slot

    def can_cut(self, part: int) -> bool:
        """Whether a whole GPU can be cut into this part and the rest."""
        return part in self._pairs

    def cut(self, gpu: int, part: int) -> Slot:
        """Cuts a whole GPU; returns the slot of this part."""
        self.slots[gpu] = [Slot(gpu, part), Slot(gpu, WHOLE_PCT - part)]
        self._join(gpu)
        return self.slots[gpu][0]

    def join(self, gpu: int) -> None:
        """Makes an unused GPU whole again."""
        self.slots[gpu] = [Slot(gpu, WHOLE_PCT)]

    def share(self, slot: Slot) -> float:
        """Share of a slot's time that its rates take at the very least."""
        best_rate = self.sizes.best_rate
        return sum(rate / best_rate[name][slot.part] for name, rate in zip(slot.models, slot.rates, strict=True))

    def plan(self) -> Plan:
        """What there is, as a plan."""
        return numbered(
            Glet(
                gpu=slot.gpu,
                part_pct=slot.part,
                cycle_ms=slot.cycle_ms,
                models=tuple(
                    sorted(
                        Portion(model=model, batch=batch, rate=rate)
                        for model, batch, rate in zip(slot.models, slot.batches, slot.rates, strict=True)
                    )
                ),
            )
            for slots in self.slots
            for slot in slots
            if slot.models
        )

    def has_memory(self, slot: Slot, model: str) -> bool:
        """Whether one more model on a slot fits into its GPU's memory."""
        device, models = self.sizes.device, self.sizes.models
        needed_mb = models[model].memory_mb + (0.0 if slot.models else device.process_mb)
        for other in self.slots[slot.gpu]:
            if other.models:
                needed_mb += device.process_mb + sum(models[name].memory_mb for name in other.models)
        return needed_mb <= device.memory_mb

    def put(self, slot: Slot, models: tuple[str, ...], rates: tuple[float, ...], fitting: Fitting) -> None:
        """What a slot has from now on."""
        slot.models, slot.rates, slot.batches = models, rates, fitting.batches
        slot.cycle_ms, slot.busy_ms = fitting.cycle_ms, fitting.busy_ms
        slot.pressure = self.sizes.pressure(slot.part, list(zip(models, fitting.batches, strict=True)))

    def fittings(
        self, models: tuple[str, ...], rates: tuple[float, ...], part: int, pressure: object
    ) -> Iterator[Fitting]:
        """All batches in which a part serves these rates, those of the longest cycles first.

        Batches are as small as a cycle allows, so they change only where a cycle is b / r of one of the models: trying
        these is trying all.
        """
        sizes = self.sizes
        if len(models) == 1:
            for batch, busy_ms, cycle_ms in sizes.alone(models[0], rates[0], part, pressure):
                yield Fitting((batch,), busy_ms, cycle_ms)
            return
        times = [sizes.latencies(model, part, pressure) for model in models]
        slo_ms = min(sizes.models[model].slo_ms for model in models)
        room_ms = slo_ms - sum(each[0] for each in times)
        if room_ms < slo_ms / 2:
            return
        per_ms = [rate / 1000 for rate in rates]
        cycles = {room_ms}
        for rate, each in zip(per_ms, times, strict=True):
            most = min(len(each), int(room_ms * rate))
            cycles.update([batch / rate for batch in range(1, most + 1)])
        largest = [len(each) for each in times]
        for cycle_ms in sorted(cycles, reverse=True):
            batches = [math.ceil(rate * cycle_ms - ROUNDING) or 1 for rate in per_ms]
            busy_ms = 0.0
            for batch, most, each in zip(batches, largest, times, strict=True):
                if batch > most:
                    break
                busy_ms += each[batch - 1]
            else:
                if busy_ms <= cycle_ms and cycle_ms + busy_ms <= slo_ms:
                    yield Fitting(tuple(batches), busy_ms, cycle_ms)
                elif busy_ms <= slo_ms - busy_ms < cycle_ms:
                    # The cycle may be a little shorter than its batches take to arrive.
                    yield Fitting(tuple(batches), busy_ms, slo_ms - busy_ms)

    def held(self, slot: Slot, pressure: object) -> Fitting | None:
        """A slot with its batches as they are beside another neighbour, its cycle made to match; None: not sound."""
        return self.kept(slot.models, slot.rates, slot.batches, slot.part, pressure)

    def kept(
        self,
        models: tuple[str, ...],
        rates: tuple[float, ...],
        batches: tuple[int, ...],
        part: int,
        pressure: object,
    ) -> Fitting | None:
        """The longest cycle of these batches on a part; None: there is none."""
        sizes = self.sizes
        busy_ms, arrive_ms, slo_ms = 0.0, math.inf, math.inf
        for model, rate, batch in zip(models, rates, batches, strict=True):
            busy_ms += sizes.latencies(model, part, pressure)[batch - 1]
            arrive_ms = min(arrive_ms, 1000 * batch / rate)
            slo_ms = min(slo_ms, sizes.models[model].slo_ms)
        cycle_ms = min(arrive_ms, slo_ms - busy_ms)
        return Fitting(batches, busy_ms, cycle_ms) if busy_ms <= cycle_ms * (1 + ROUNDING) else None

    def settle(self, slot: Slot, models: tuple[str, ...], rates: tuple[float, ...], fitting: Fitting) -> bool:
        """Puts models on a slot if its neighbour keeps its promises, with other batches if it must."""
        neighbour = slot.neighbour
        if neighbour is None or not neighbour.models:
            self.put(slot, models, rates, fitting)
            return True
        pressure = self.sizes.pressure(slot.part, list(zip(models, fitting.batches, strict=True)))
        still = self.held(neighbour, pressure)
        if still is not None:
            self.put(slot, models, rates, fitting)
            self.put(neighbour, neighbour.models, neighbour.rates, still)
            return True
        for tried, other in enumerate(self.fittings(neighbour.models, neighbour.rates, neighbour.part, pressure)):
            if tried == _REFITS_MAX:
                break
            loads = list(zip(neighbour.models, other.batches, strict=True))
            ours = self.kept(models, rates, fitting.batches, slot.part, self.sizes.pressure(neighbour.part, loads))
            if ours is not None:
                self.put(slot, models, rates, ours)
                self.put(neighbour, neighbour.models, neighbour.rates, other)
                return True
        return False

    def _join(self, gpu: int) -> None:
        slots = self.slots[gpu]
        if len(slots) == 2:
            slots[0].neighbour, slots[1].neighbour = slots[1], slots[0]


def _beside(slot: Slot) -> object:
    """The pressure of a slot's neighbour."""
    return slot.neighbour.pressure if slot.neighbour is not None else None


class Elastic:
    """One run of Algorithm 1."""

    def __init__(self, packing: Packing, rates: Mapping[str, float], variant: Variant) -> None:
        self.packing, self.sizes, self.variant = packing, packing.sizes, variant
        self.left = {name: rate for name, rate in rates.items() if rate > 0}
        rank = self.sizes.rank
        self.order = sorted(self.left, key=lambda name: (self.left[name] * self.sizes.models[name].slo_ms, rank[name]))
        self._turns = _TURNS_BASE + _TURNS_A_MODEL * len(self.order)

    def run(self) -> Plan | Refusal:
        """Places all models [glet §4.3 lines 2 to 13]."""
        while any(self.left.values()):
            for name in self.order:
                while self.left[name] > 0:
                    self._turns -= 1
                    if self._turns < 0:
                        return self._refused(name, "neighbours slow each other down without end")
                    if not self._step(name):
                        return self._refused(name, "no part is free that serves it, and no glet takes it as well")
        return self.packing.plan()

    def _refused(self, name: str, why: str) -> Refusal:
        return Refusal(model=name, left=self.left[name], why=why)

    def _step(self, name: str) -> bool:
        if self.variant.merge_first and self._merge(name):
            return True
        return self._place(name) or (not self.variant.merge_first and self._merge(name))

    def _merge(self, name: str) -> bool:
        """All that is left of a model onto a glet that has other models [glet §4.3 line 22]."""
        packing, rate = self.packing, self.left[name]
        best_rate = self.sizes.best_rate[name]
        for slot in packing.used():
            if len(slot.models) >= MODELS_MAX or name in slot.models or best_rate[slot.part] < rate:
                continue
            if packing.share(slot) + rate / best_rate[slot.part] > 1 + ROUNDING or not packing.has_memory(slot, name):
                continue
            models, rates = (*slot.models, name), (*slot.rates, rate)
            for fitting in packing.fittings(models, rates, slot.part, _beside(slot)):
                if packing.settle(slot, models, rates, fitting):
                    self.left[name] = 0.0
                    return True
        return False

    def _place(self, name: str) -> bool:
        """A part of its own for a model, or for as much of its rate as the part serves [glet §4.3 lines 14 to 26]."""
        packing, sizes = self.packing, self.sizes
        knee = sizes.knee(name, self.variant.knee)
        required = sizes.required(name, self.left[name])
        want = min(knee, required) if required is not None else knee
        free = sorted(packing.free(), key=lambda slot: (slot.part, slot.gpu))
        enough = [slot for slot in free if slot.part >= want]
        short = [slot for slot in reversed(free) if slot.part < want]
        whole = [slot for slot in (*enough, *short) if sizes.best_rate[name][slot.part] >= self.left[name]]
        for slot in whole:
            if self._try(slot, name, want, self._serve):
                return True
        return any(self._try(slot, name, want, self._saturate) for slot in (*enough, *short))

    def _try(self, slot: Slot, name: str, want: int, how: Callable[[Slot, str], bool]) -> bool:
        """One way to serve a model on a slot, which is cut first where it is a whole GPU and less is wanted."""
        packing = self.packing
        if not packing.has_memory(slot, name):
            return False
        if slot.part == WHOLE_PCT and want < WHOLE_PCT and packing.can_cut(want):
            if how(packing.cut(slot.gpu, want), name):
                return True
            packing.join(slot.gpu)
            return False
        return how(slot, name)

    def _serve(self, slot: Slot, name: str) -> bool:
        """All that is left of a model."""
        packing, rate = self.packing, self.left[name]
        if self.sizes.best_rate[name][slot.part] < rate:
            return False
        for fitting in packing.fittings((name,), (rate,), slot.part, _beside(slot)):
            if packing.settle(slot, (name,), (rate,), fitting):
                self.left[name] = 0.0
                return True
        return False

    def _saturate(self, slot: Slot, name: str) -> bool:
        """As much of a model as a part serves without a pause, the best batch first."""
        packing, sizes, left = self.packing, self.sizes, self.left[name]
        half_ms = sizes.models[name].slo_ms / 2
        times = sizes.latencies(name, slot.part, _beside(slot))
        found = [(1000 * (at + 1) / ms, at + 1, ms) for at, ms in enumerate(times) if ms <= half_ms]
        for most, batch, ms in sorted(found, reverse=True):
            rate = min(most, left)
            if packing.settle(
                slot, (name,), (rate,), Fitting((batch,), ms, min(1000 * batch / rate, 2 * half_ms - ms))
            ):
                self._reduce(name, slot.rates[0])
                return True
        neighbour = slot.neighbour
        if neighbour is None or len(neighbour.models) != 1:
            return False
        return any(self._yield(slot, name, one, neighbour) for one in sorted(found, reverse=True))

    def _yield(self, slot: Slot, name: str, one: tuple[float, int, float], neighbour: Slot) -> bool:
        """Places a model where its neighbour serves less from then on, and gives that rest back to the neighbour's."""
        packing, sizes = self.packing, self.sizes
        (other,), (had,) = neighbour.models, neighbour.rates
        pressure = sizes.pressure(slot.part, [(name, one[1])])
        times, half_ms = sizes.latencies(other, neighbour.part, pressure), sizes.models[other].slo_ms / 2
        found = [(1000 * (at + 1) / ms, at + 1, ms) for at, ms in enumerate(times) if ms <= half_ms]
        for most, batch, ms in sorted(found, reverse=True):
            ours = sizes.latencies(name, slot.part, sizes.pressure(neighbour.part, [(other, batch)]))[one[1] - 1]
            slo_ms = sizes.models[name].slo_ms
            if 2 * ours > slo_ms:
                continue
            rate, kept = min(1000 * one[1] / ours, self.left[name]), min(most, had)
            # Only if more is won than lost, or two models could push each other away for ever.
            if rate + kept <= had * (1 + ROUNDING):
                return False
            cycle_ms = min(1000 * one[1] / rate, slo_ms - ours)
            packing.put(slot, (name,), (rate,), Fitting((one[1],), ours, cycle_ms))
            packing.put(neighbour, (other,), (kept,), Fitting((batch,), ms, min(1000 * batch / kept, 2 * half_ms - ms)))
            self._reduce(name, rate)
            self.left[other] += had - kept
            return True
        return False

    def _reduce(self, name: str, served: float) -> None:
        left = self.left[name] - served
        self.left[name] = left if left > _LEAST_RATE else 0.0


def place(
    sizes: Sizes,
    rates: Mapping[str, float],
    gpus: int,
    variant: Variant,
    cuts: Sequence[Sequence[int]] | None = None,
) -> Plan | Refusal:
    """One run of Algorithm 1 on whole GPUs, or on given cuts (one a GPU) [glet §4.3, Algorithm 1].

    Args:
        sizes: Models and device.
        rates: Planned requests a second by model.
        gpus: GPUs that there are.
        variant: How it is read.
        cuts: Parts of each GPU; None: GPUs are cut as models want.
    """
    return Elastic(Packing(sizes, gpus, cuts), rates, variant).run()
