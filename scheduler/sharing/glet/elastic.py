"""Algorithm 1: models are placed one after the other on parts of GPUs, which are cut as they want [glet §4.3]. PURE.

After each step every glet that is used keeps its cycle, its SLOs and its memory beside its neighbour as it is then.
"""

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion, Refusal, numbered
from farside.scheduler.sharing.glet.profile import MODELS_MAX, WHOLE_PCT
from farside.scheduler.sharing.glet.size import ROUNDING, Fitting, Knee, Seat, Sizes, make_room

_REFITS_MAX = 4
_LEAST_RATE = 1e-6
_part = attrgetter("part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How Algorithm 1 is read: the knee, whether merging is tried before a part of its own or after, and the order.

    ``largest_first``: those with the most rate times SLO come first; printed is the other way round.
    """

    knee: Knee = "chord"
    merge_first: bool = True
    largest_first: bool = False


class Slot:
    """A part of a GPU while a plan is made: the models on it with batch and rate, and its cycle."""

    __slots__ = (
        "batches", "busy_ms", "cycle_ms", "gpu", "models", "neighbour", "part", "pressure", "rates", "share",
    )  # fmt: skip

    def __init__(self, gpu: int, part: int) -> None:
        self.gpu, self.part = gpu, part
        self.neighbour: Slot | None = None
        self.models: tuple[str, ...] = ()
        self.rates: tuple[float, ...] = ()
        self.batches: tuple[int, ...] = ()
        self.cycle_ms = self.busy_ms = 0.0
        # Computed when they are asked for: what it does to its neighbour, and the time that its rates take.
        self.pressure: object = None
        self.share: float | None = None


class Packing:
    """Slots of GPUs, and what of them is sound: those with models as they were taken, the others by part and GPU."""

    def __init__(self, sizes: Sizes, gpus: int, cuts: Sequence[Sequence[int]] | None = None) -> None:
        self.sizes = sizes
        self.used: list[Slot] = []
        self.unused: list[Slot] = []
        self._memory_mb = [0.0] * gpus
        for gpu in range(gpus):
            self.unused += _slots(gpu, cuts[gpu] if cuts is not None else (WHOLE_PCT,))
        self.unused.sort(key=_part)

    def takers(self, name: str, rate: float) -> list[Slot]:
        """Slots with models whose time and memory have room for another model, fullest first."""
        best_rate, found = self.sizes.best_rate[name], list[Slot]()
        for slot in self.used:
            models = slot.models
            if name in models or len(models) >= MODELS_MAX or (most := best_rate[slot.part]) < rate:
                continue
            share = slot.share
            if share is None:
                share = self.share(slot)
            if (
                share + rate / most <= 1 + ROUNDING
                and self.sizes.may_share((*models, name), slot.part)
                and self.has_memory(slot, name)
            ):
                found.append(slot)
        if len(found) > 1:
            found.sort(key=lambda slot: (-slot.busy_ms / slot.cycle_ms, slot.gpu, -slot.part))
        return found

    def free(self) -> list[Slot]:
        """Slots without models, by part and GPU; of whole GPUs the first only, as all are alike."""
        return self.unused[: bisect_left(self.unused, WHOLE_PCT, key=_part) + 1]

    def can_cut(self, part: int) -> bool:
        """Whether a whole GPU can be cut into this part and the rest."""
        return part in self.sizes.pairs

    def cut(self, whole: Slot, part: int) -> Slot:
        """Cuts a whole GPU; returns the slot of this part."""
        self.unused.remove(whole)
        slots = _slots(whole.gpu, (part, WHOLE_PCT - part))
        for slot in slots:
            insort(self.unused, slot, key=_place_of)
        return slots[0]

    def share(self, slot: Slot) -> float:
        """Share of a slot's time that its rates take at the very least."""
        if slot.share is None:
            best_rate, part = self.sizes.best_rate, slot.part
            slot.share = sum(rate / best_rate[name][part] for name, rate in zip(slot.models, slot.rates, strict=True))
        return slot.share

    def pressure(self, slot: Slot) -> object:
        """What a slot's models do to its neighbour; None: nothing, or it has none."""
        if slot.pressure is None and slot.models:
            slot.pressure = self._pressure(slot.part, slot.models, slot.batches)
        return slot.pressure

    def beside(self, slot: Slot) -> object:
        """The pressure of a slot's neighbour."""
        return self.pressure(slot.neighbour) if slot.neighbour is not None else None

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
            for slot in self.used
        )

    def has_memory(self, slot: Slot, model: str) -> bool:
        """Whether one more model on a slot fits into its GPU's memory."""
        device = self.sizes.device
        needed_mb = self.sizes.models[model].memory_mb + (0.0 if slot.models else device.process_mb)
        return self._memory_mb[slot.gpu] + needed_mb <= device.memory_mb

    def lack_of(self, model: str, otherwise: str) -> str:
        """The reason that no slot takes a model: memory, where no GPU has enough of it; otherwise the given one."""
        if any(self.has_memory(slot, model) for slot in (*self.used, *self.unused)):
            return otherwise
        needed_mb, most_mb = self.sizes.models[model].memory_mb, self.sizes.device.memory_mb
        return f"no GPU has the {needed_mb:,.0f} MB of memory free that it needs, of {most_mb:,.0f} MB"

    def put(self, slot: Slot, models: tuple[str, ...], rates: tuple[float, ...], fitting: Fitting) -> None:
        """What a slot has from now on: the models that it has, and maybe others behind them."""
        had = len(slot.models)
        if not had:
            self.unused.remove(slot)
            self.used.append(slot)
            self._memory_mb[slot.gpu] += self.sizes.device.process_mb
        for name in models[had:]:
            self._memory_mb[slot.gpu] += self.sizes.models[name].memory_mb
        slot.models, slot.rates = models, rates
        slot.batches, slot.busy_ms, slot.cycle_ms = fitting
        slot.pressure = slot.share = None

    def fittings(
        self, models: tuple[str, ...], rates: tuple[float, ...], part: int, pressure: object
    ) -> Iterator[Fitting]:
        """All batches in which a part serves these rates, those of the longest cycles first."""
        if len(models) == 1:
            return self.sizes.alone(models[0], rates[0], part, pressure)
        return self._together(models, rates, part, pressure)

    def _together(
        self, models: tuple[str, ...], rates: tuple[float, ...], part: int, pressure: object
    ) -> Iterator[Fitting]:
        """Batches are as small as a cycle allows, so they change only where a cycle is b / r of one of the models.

        Trying these is trying all. Those shorter than any that fits, and those whose work the SLO can't hold, are
        passed over.
        """
        sizes = self.sizes
        times = [sizes.latencies(model, part, pressure) for model in models]
        slo_ms = min([sizes.models[model].slo_ms for model in models])
        room_ms = slo_ms - sum([each[0] for each in times])
        if room_ms < slo_ms / 2:
            return
        per_ms = [rate / 1000 for rate in rates]
        least = [sizes.least_ms(model, part, pressure) for model in models]
        shortest_ms = _shortest(per_ms, least, room_ms)
        if shortest_ms > room_ms:
            return
        cycles = {room_ms}
        for rate, each in zip(per_ms, times, strict=True):
            most = min(len(each), int(room_ms * rate))
            cycles.update([batch / rate for batch in range(max(1, int(shortest_ms * rate)), most + 1)])
        ordered = sorted(cycles, reverse=True)
        first = bisect_left(ordered, True, key=lambda cycle_ms: 2 * _work(cycle_ms, per_ms, least) <= slo_ms)
        for cycle_ms in ordered[first:]:
            batches = [math.ceil(rate * cycle_ms - ROUNDING) or 1 for rate in per_ms]
            busy_ms = sum([each[batch - 1] for batch, each in zip(batches, times, strict=True)])
            if busy_ms <= cycle_ms and cycle_ms + busy_ms <= slo_ms:
                yield Fitting(tuple(batches), busy_ms, cycle_ms)
            elif busy_ms <= slo_ms - busy_ms < cycle_ms:
                # The cycle may be a little shorter than its batches take to arrive.
                yield Fitting(tuple(batches), busy_ms, slo_ms - busy_ms)

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

    def take(self, slot: Slot, models: tuple[str, ...], seat: Seat) -> None:
        """Puts models on a slot, and gives its neighbour the rates and batches that go with it."""
        self.put(slot, models, seat.rates, seat.ours)
        if seat.theirs is not None and slot.neighbour is not None:
            self.put(slot.neighbour, slot.neighbour.models, seat.their_rates, seat.theirs)

    def seat(self, slot: Slot, models: tuple[str, ...], rates: tuple[float, ...]) -> Seat | Literal[False]:
        """How models fit on a slot: in the longest cycle in which they and the neighbour's keep all promises.

        Equal parts with equal rates beside equal neighbours have equal answers, which are kept. False: not at all.
        """
        seats, key = self.sizes.seats, (slot.part, models, rates, *_neighbour_key(slot))
        found = seats.get(key)
        if found is None:
            tried = self.fittings(models, rates, slot.part, self.beside(slot))
            found = self._first((self._seat(slot, models, rates, one) for one in tried), key)
        return found

    def saturated(self, slot: Slot, name: str, left: float) -> Seat | Literal[False]:
        """How as much of a model's rate as a slot serves without a pause fits on it, the best batch first.

        Beside a single model that may serve less from then on. Answers are kept as those of `seat` are.
        """
        seats, key = self.sizes.seats, (slot.part, name, left, *_neighbour_key(slot))
        found = seats.get(key)
        if found is None:
            found = self._first(self._saturated(slot, name, left), key)
        return found

    def _first(self, tried: Iterable[Seat | None], key: object) -> Seat | Literal[False]:
        """The first that there is; kept."""
        seats = self.sizes.seats
        make_room(seats)
        first: Seat | None = next((one for one in tried if one is not None), None)
        found = seats[key] = first or False
        return found

    def _seat(self, slot: Slot, models: tuple[str, ...], rates: tuple[float, ...], fitting: Fitting) -> Seat | None:
        """Models in these batches, if the neighbour keeps its promises, with other batches if it must."""
        other = slot.neighbour
        if other is None or not other.models:
            return Seat(rates, fitting)
        pressure = self._pressure(slot.part, models, fitting.batches)
        still = self.kept(other.models, other.rates, other.batches, other.part, pressure)
        if still is not None:
            return Seat(rates, fitting, other.rates, still)
        for theirs in itertools.islice(self.fittings(other.models, other.rates, other.part, pressure), _REFITS_MAX):
            beside = self._pressure(other.part, other.models, theirs.batches)
            ours = self.kept(models, rates, fitting.batches, slot.part, beside)
            if ours is not None:
                return Seat(rates, ours, other.rates, theirs)
        return None

    def _saturated(self, slot: Slot, name: str, left: float) -> Iterator[Seat | None]:
        sizes, other = self.sizes, slot.neighbour
        half_ms = sizes.models[name].slo_ms / 2
        found = sizes.saturations(name, slot.part, self.beside(slot))
        for most, batch, ms in found:
            rate = min(most, left)
            fitting = Fitting((batch,), ms, min(1000 * batch / rate, 2 * half_ms - ms))
            yield self._seat(slot, (name,), (rate,), fitting)
        if other is not None and len(other.models) == 1:
            for _, batch, _ in found:
                yield self._yielded(slot, name, batch, left, other)

    def _yielded(self, slot: Slot, name: str, batch: int, left: float, neighbour: Slot) -> Seat | None:
        """A model in a batch on a slot whose neighbour, a single model, serves less from then on.

        What the neighbour gives back finds room here where it is the same model.
        """
        sizes, slo_ms = self.sizes, self.sizes.models[name].slo_ms
        (other,), (had,) = neighbour.models, neighbour.rates
        half_ms = sizes.models[other].slo_ms / 2
        for most, theirs, ms in sizes.saturations(other, neighbour.part, sizes.pressure(slot.part, [(name, batch)])):
            ours = sizes.latencies(name, slot.part, sizes.pressure(neighbour.part, [(other, theirs)]))[batch - 1]
            if 2 * ours > slo_ms:
                continue
            kept = min(most, had)
            rate = min(1000 * batch / ours, left + had - kept if other == name else left)
            # Only if more is won than lost.
            if rate + kept <= had * (1 + ROUNDING):
                return None
            return Seat(
                (rate,),
                Fitting((batch,), ours, min(1000 * batch / rate, slo_ms - ours)),
                (kept,),
                Fitting((theirs,), ms, min(1000 * theirs / kept, 2 * half_ms - ms)),
            )
        return None

    def _pressure(self, part: int, models: tuple[str, ...], batches: tuple[int, ...]) -> object:
        return self.sizes.pressure(part, list(zip(models, batches, strict=True)))


def _slots(gpu: int, parts: Sequence[int]) -> list[Slot]:
    """Slots of a GPU that is whole, or cut in two."""
    slots = [Slot(gpu, part) for part in parts]
    if len(slots) == 2:
        slots[0].neighbour, slots[1].neighbour = slots[1], slots[0]
    return slots


def _place_of(slot: Slot) -> tuple[int, int]:
    return slot.part, slot.gpu


def _work(cycle_ms: float, per_ms: Sequence[float], least: Sequence[Sequence[float]]) -> float:
    """Milliseconds that a cycle's batches take at the least; without end where there is none as large."""
    busy_ms = 0.0
    for rate, each in zip(per_ms, least, strict=True):
        batch = math.ceil(rate * cycle_ms - ROUNDING) or 1
        if batch > len(each):
            return math.inf
        busy_ms += each[batch - 1]
    return busy_ms


def _shortest(per_ms: Sequence[float], least: Sequence[Sequence[float]], longest_ms: float) -> float:
    """No cycle below it has time for its batches: each is at least as long as the work of one that is shorter."""
    shortest_ms, work_ms = 0.0, sum([each[0] for each in least])
    while shortest_ms < work_ms <= longest_ms:
        shortest_ms, work_ms = work_ms, _work(work_ms, per_ms, least)
    return max(shortest_ms, work_ms)


def _neighbour_key(slot: Slot) -> tuple[object, ...]:
    """What of a slot's neighbour decides what fits beside it."""
    other = slot.neighbour
    if other is None or not other.models:
        return ()
    return other.part, other.models, other.rates, other.batches


class Elastic:
    """One run of Algorithm 1."""

    def __init__(self, packing: Packing, rates: Mapping[str, float], variant: Variant) -> None:
        self.packing, self.sizes, self.variant = packing, packing.sizes, variant
        self.left = {name: rate for name, rate in rates.items() if rate > 0}
        order = self.sizes.ordered(rates)
        self.order = order[::-1] if variant.largest_first else order

    def run(self) -> Plan | Refusal:
        """Places all models [glet §4.3 lines 2 to 13].

        It comes to an end: a step on a part of its own takes a free one for good, and any other one leaves nothing of
        its model.
        """
        while any(self.left.values()):
            for name in self.order:
                while self.left[name] > 0:
                    if not self._step(name):
                        why = "no part is free that serves it, and no glet takes it as well"
                        return Refusal(model=name, left=self.left[name], why=self.packing.lack_of(name, why))
        return self.packing.plan()

    def _step(self, name: str) -> bool:
        if self.variant.merge_first and self._merge(name):
            return True
        return self._place(name) or (not self.variant.merge_first and self._merge(name))

    def _merge(self, name: str) -> bool:
        """All that is left of a model onto a glet that has other models [glet §4.3 line 22]."""
        packing, rate = self.packing, self.left[name]
        for slot in packing.takers(name, rate):
            models = (*slot.models, name)
            seat = packing.seat(slot, models, (*slot.rates, rate))
            if seat:
                packing.take(slot, models, seat)
                self.left[name] = 0.0
                return True
        return False

    def _place(self, name: str) -> bool:
        """A part of its own for a model, or for as much of its rate as the part serves [glet §4.3 lines 14 to 26]."""
        sizes, left = self.sizes, self.left[name]
        knee, required = sizes.knee(name, self.variant.knee), sizes.required(name, left)
        want = min(knee, required) if required is not None else knee
        free = self.packing.free()
        at = bisect_left(free, want, key=_part)
        # The smallest that is large enough, and then smaller ones, the largest first.
        ordered, best_rate = free[at:] + free[:at][::-1], sizes.best_rate[name]
        for slot in ordered:
            if best_rate[slot.part] >= left and self._try(slot, name, want, self._serve):
                return True
        return any(self._try(slot, name, want, self._saturate) for slot in ordered)

    def _try(self, slot: Slot, name: str, want: int, how: Callable[[Slot, str], Seat | Literal[False]]) -> bool:
        """One way to serve a model on a slot, which is cut for it where it is a whole GPU and less is wanted."""
        packing = self.packing
        if not packing.has_memory(slot, name):
            return False
        is_cut = slot.part == WHOLE_PCT and want < WHOLE_PCT and packing.can_cut(want)
        seat = how(Slot(slot.gpu, want) if is_cut else slot, name)
        if seat:
            self._take(packing.cut(slot, want) if is_cut else slot, name, seat)
        return bool(seat)

    def _serve(self, slot: Slot, name: str) -> Seat | Literal[False]:
        """All that is left of a model."""
        rate = self.left[name]
        return self.sizes.best_rate[name][slot.part] >= rate and self.packing.seat(slot, (name,), (rate,))

    def _saturate(self, slot: Slot, name: str) -> Seat | Literal[False]:
        """As much of a model as a part serves."""
        return self.packing.saturated(slot, name, self.left[name])

    def _take(self, slot: Slot, name: str, seat: Seat) -> None:
        """A model takes a slot; what its neighbour no longer serves goes back to that one's model."""
        left, neighbour = self.left, slot.neighbour
        left[name] -= seat.rates[0]
        if seat.theirs is not None and neighbour is not None and seat.their_rates != neighbour.rates:
            for other, had, kept in zip(neighbour.models, neighbour.rates, seat.their_rates, strict=True):
                left[other] += had - kept
                if left[other] <= _LEAST_RATE:
                    left[other] = 0.0
        if left[name] <= _LEAST_RATE:
            left[name] = 0.0
        self.packing.take(slot, (name,), seat)


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
