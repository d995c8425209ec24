"""How large a part a model needs: what it serves on each, the knee, and the least that is enough. PURE.

`Sizes` holds what can be said of models and device before any rate is known, so that a decision looks up and computes
little. It is shared by all decisions of a deployment.
"""

import itertools
import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from farside.scheduler.sharing.glet.bound import Least, Times, costs, least, percent_min
from farside.scheduler.sharing.glet.profile import WHOLE_PCT, DeviceProfile, Load, ModelProfile

Knee = Literal["chord", "step", "ratio"]

# Of the last bits of sums: what is so near is equal.
ROUNDING = 1e-9
_STEP_LEAST = 0.05
# Of what is computed anew when it is gone: entries of each kind.
KEPT_MAX = 20_000
# At most so many numbers in all entries of a kind that have one for each batch: about 128 MB.
NUMBERS_MAX = 4_000_000


class Fitting(NamedTuple):
    """Batches of some models on a part, the work that they are, and the longest cycle that keeps all promises."""

    batches: tuple[int, ...]
    busy_ms: float
    cycle_ms: float


class Seat(NamedTuple):
    """Rates and batches of models on a part, and those of its neighbour's models from then on; None: as before."""

    rates: tuple[float, ...]
    ours: Fitting
    their_rates: tuple[float, ...] = ()
    theirs: Fitting | None = None


class Sizes:
    """Models by name on one kind of device.

    Args:
        models: All that may have rates.
        device: What they run on; its interference is planned with.
    """

    def __init__(self, models: Mapping[str, ModelProfile], device: DeviceProfile) -> None:
        self.models, self.device = dict(models), device
        self.parts = device.parts
        # Ties are broken by what a model is and only then by its name, so that names do not decide.
        by_content = sorted(self.models.values(), key=lambda model: (_content(model), model.name))
        self.rank = {model.name: at for at, model in enumerate(by_content)}
        self.pairs = frozenset(part for cut in device.cuts if len(cut) > 1 for part in cut)
        # By models on a part and their neighbour; False: none. Tries and numbers of GPUs ask for the same many times.
        self.seats: dict[object, Seat | Literal[False]] = {}
        self._latencies: dict[tuple[str, int, object], Sequence[float]] = {}
        self._least_ms: dict[tuple[str, int, object], Sequence[float]] = {}
        self._slo_batches: dict[tuple[str, int, object], list[tuple[int, float, float, float]]] = {}
        self._saturations: dict[tuple[str, int, object], list[tuple[float, int, float]]] = {}
        self._mosts: dict[tuple[str, int, object], float] = {}
        self.best_rate = {name: {part: self._most(name, part, None) for part in self.parts} for name in self.models}
        # Computed when it is asked for, as those that serve a plan never do.
        self._least: list[dict[str, Least]] | None = None
        self._sharing: dict[tuple[tuple[str, ...], int], bool] = {}
        # Of the last rates that were asked for: all tries of a decision ask for the same.
        self._asked: tuple[tuple[str, float], ...] = ()
        self._ordered: tuple[str, ...] = ()
        self._knees: dict[tuple[str, Knee], int] = {}

    def unservable(self, model: str, parts: Collection[int] = ()) -> str:
        """Why none of these parts, or of all, serves a model at any rate; empty: one does."""
        profile, device, parts = self.models[model], self.device, parts or self.parts
        if not any(self.best_rate[model][part] for part in parts):
            shortest_ms = 2 * min(profile.latency_ms[part][0] for part in parts)
            where = "" if len(parts) > 1 else f" on {min(parts)} %"
            slo_ms = f"{profile.slo_ms:g} ms"
            return f"an SLO of {slo_ms} can never be met{where}: the shortest that can is {shortest_ms:.3g} ms"
        if profile.memory_mb + device.process_mb > device.memory_mb:
            needs = f"{profile.memory_mb:,.0f} MB of memory and {device.process_mb:,.0f} MB for its process"
            return f"it needs {needs}, and a GPU has {device.memory_mb:,.0f} MB"
        return ""

    def latencies(self, model: str, part_pct: int, pressure: object) -> Sequence[float]:
        """Milliseconds of batches of 1, 2, 3, ... on a part under a pressure; None: alone."""
        profile = self.models[model]
        if pressure is None:
            return profile.latency_ms[part_pct]
        key = (model, part_pct, pressure)
        found = self._latencies.get(key)
        if found is None:
            make_room(self._latencies, self.models[model].max_batch)
            factors = self.device.interference.factors(model, part_pct, pressure)
            found = self._latencies[key] = slowed_by(factors, profile, part_pct)
        return found

    def least_ms(self, model: str, part_pct: int, pressure: object) -> Sequence[float]:
        """Milliseconds that a batch and all larger ones take at the least, for batches of 1, 2, 3, ..."""
        key = (model, part_pct, pressure)
        found = self._least_ms.get(key)
        if found is None:
            make_room(self._least_ms, self.models[model].max_batch)
            found = self.latencies(model, part_pct, pressure)
            if any(map(operator.gt, found, found[1:])):
                found = list(itertools.accumulate(reversed(found), min))[::-1]
            self._least_ms[key] = found
        return found

    def alone(self, model: str, rate: float, part_pct: int, pressure: object) -> Iterator[Fitting]:
        """Batches in which a part serves a rate of one model; longest cycles first.

        A cycle is as long as the batch takes to arrive, or as the SLO leaves, whichever is less [glet §2.2].
        """
        if self._most(model, part_pct, pressure) < rate * (1 - ROUNDING):
            return
        found = [
            (-cycle_ms, batch, ms)
            for batch, ms, rest_ms, least_ms in self._batches(model, part_pct, pressure)
            if least_ms <= (cycle_ms := arrive_ms if (arrive_ms := 1000 * batch / rate) < rest_ms else rest_ms)
        ]
        found.sort()
        for negated_ms, batch, busy_ms in found:
            yield Fitting((batch,), busy_ms, -negated_ms)

    def may_share(self, models: tuple[str, ...], part_pct: int) -> bool:
        """Whether a batch of one of each, one after the other, takes no more than half of each SLO: a cycle is as long.

        False rules them out beside any neighbour, which only slows them.
        """
        found = self._sharing.get((models, part_pct))
        if found is None:
            make_room(self._sharing)
            busy_ms = sum([self.models[name].latency_ms[part_pct][0] for name in models])
            slo_ms = min([self.models[name].slo_ms for name in models])
            found = self._sharing[models, part_pct] = busy_ms <= longest_ms(slo_ms)
        return found

    def _batches(self, model: str, part_pct: int, pressure: object) -> list[tuple[int, float, float, float]]:
        """Batches within the SLO, with their ms, what the SLO leaves beside them, and the shortest cycle for them."""
        key = (model, part_pct, pressure)
        found = self._slo_batches.get(key)
        if found is None:
            make_room(self._slo_batches, 4 * self.models[model].max_batch)
            slo_ms = self.models[model].slo_ms
            bound_ms = longest_ms(slo_ms)
            # The cycle of a batch that is only just within its SLO may be shorter than it, by that much.
            found = self._slo_batches[key] = [
                (batch, ms, slo_ms - ms, ms * (1 - 3 * ROUNDING))
                for batch, ms in enumerate(self.latencies(model, part_pct, pressure), 1)
                if ms <= bound_ms
            ]
        return found

    def saturations(self, model: str, part_pct: int, pressure: object) -> list[tuple[float, int, float]]:
        """Requests a second, batch and its ms, where a part serves a model without a pause; most requests first."""
        key = (model, part_pct, pressure)
        found = self._saturations.get(key)
        if found is None:
            make_room(self._saturations, 3 * self.models[model].max_batch)
            bound_ms, times = longest_ms(self.models[model].slo_ms), self.latencies(model, part_pct, pressure)
            within = [(1000 * batch / ms, batch, ms) for batch, ms in enumerate(times, 1) if ms <= bound_ms]
            found = sorted(within, reverse=True)
            self._saturations[key] = found
        return found

    def pressure(self, part_pct: int, loads: Sequence[Load]) -> object:
        """What models in these batches on a part do to a neighbour."""
        return self.device.interference.pressure(part_pct, loads)

    def knee(self, model: str, knee: Knee) -> int:
        """The most cost-effective part of a model, p_eff: the knee of what it serves over the part [glet §4.3 line 6].

        ``chord``: farthest above the line from the first to the last point; ``step``: after the steepest step, as the
        authors' code has it; ``ratio``: the most requests for each percent.
        """
        found = self._knees.get((model, knee))
        if found is None:
            found = self._knees[model, knee] = self._knee(self.best_rate[model], knee)
        return found

    def _knee(self, served: Mapping[int, float], knee: Knee) -> int:
        if knee == "ratio":
            return max(self.parts, key=lambda part: (served[part] / part, part))
        if knee == "step":
            return self._steepest(served)
        first, last = self.parts[0], self.parts[-1]
        slope = (served[last] - served[first]) / (last - first) if last > first else 0.0
        above = {part: served[part] - served[first] - slope * (part - first) for part in self.parts}
        highest = max(above.values())
        return max(part for part in self.parts if above[part] >= highest - ROUNDING * served[last])

    def required(self, model: str, rate: float) -> int | None:
        """The smallest part that serves a rate with the best batch there, p_req; None: none does [glet §4.3 line 7]."""
        least = rate * (1 - ROUNDING)
        for part, served in self.best_rate[model].items():
            if served >= least:
                return part
        return None

    def ordered(self, rates: Mapping[str, float]) -> tuple[str, ...]:
        """Models that have a rate, those with the least rate times SLO first [glet §4.3 line 2]."""
        asked = tuple(rates.items())
        if asked != self._asked:
            weights = [(rate * self.models[name].slo_ms, self.rank[name], name) for name, rate in asked if rate > 0]
            self._asked, self._ordered = asked, tuple(name for *_, name in sorted(weights))
        return self._ordered

    def gpus_min(self, rates: Mapping[str, float]) -> int:
        """GPUs that any sound plan of these rates needs at least; -1: no number is enough."""
        percent = self.percent_min(rates)
        return math.ceil(percent / WHOLE_PCT - ROUNDING) if percent < math.inf else -1

    def percent_min(self, rates: Mapping[str, float]) -> float:
        """Percent of a GPU that any sound plan of these rates takes at the least.

        A glet serves no more than R(p), as a cycle is no shorter than its batches and both together no longer than the
        SLO; so a request costs a model at least the part's cost by R(p). A part of its own costs it all of that, and
        turns with another model cost it more the smaller its batches are. A part costs what it has of a GPU, or some
        more or less than that, as long as both parts cost no more than the GPU.
        """
        if self._least is None:
            self._least = self._bounds()
        return max([percent_min(each, rates) for each in self._least])

    def _bounds(self) -> list[dict[str, Least]]:
        """What each model takes at the least, by each way to divide a GPU's cost."""
        ways = {name: self._ways(profile) for name, profile in self.models.items()}
        times = {name: Times(self.models[name].slo_ms, each, list(map(min, each))) for name, each in ways.items()}
        divided = list(costs(self.parts))
        found = {
            name: least(one, [other for each, other in times.items() if each != name], divided)
            for name, one in times.items()
        }
        return [{name: each[at] for name, each in found.items()} for at in range(len(divided))]

    def _ways(self, model: ModelProfile) -> list[Sequence[float]]:
        """Least milliseconds of batches on each part: all of a GPU's without a neighbour, then those beside one."""
        found: list[Sequence[float]] = [model.latency_ms[part] for part in self.parts]
        for part in self.parts:
            if part < WHOLE_PCT:
                factors = self.device.interference.least(model.name, part, model.max_batch)
                found.append(slowed_by(factors, model, part))
        return found

    def _most(self, model: str, part_pct: int, pressure: object) -> float:
        """Requests a second that a part serves at the most: the first of `saturations`, without all others."""
        key = (model, part_pct, pressure)
        found = self._mosts.get(key)
        if found is None:
            make_room(self._mosts)
            bound_ms, times = longest_ms(self.models[model].slo_ms), self.latencies(model, part_pct, pressure)
            found = max([1000 * batch / ms for batch, ms in enumerate(times, 1) if ms <= bound_ms], default=0.0)
            self._mosts[key] = found
        return found

    def _steepest(self, served: Mapping[int, float]) -> int:
        best, steepest = self.parts[0], -1.0
        before_part, before = 0, 0.0
        # Never the last part, and no step of less than a twentieth: the authors' code.
        for part in self.parts[:-1]:
            gain = served[part] - before
            if gain > 0 and (before == 0 or gain / before >= _STEP_LEAST):
                slope = gain / (part - before_part)
                if slope > steepest:
                    best, steepest = part, slope
            before_part, before = part, served[part]
        return best


def longest_ms(slo_ms: float) -> float:
    """The longest work that keeps an SLO: a cycle of its own length may pass before it begins."""
    return slo_ms * (1 + ROUNDING) / 2


def slowed_by(factors: Sequence[float], model: ModelProfile, part_pct: int) -> list[float]:
    """Milliseconds of batches of 1, 2, 3, ... on a part beside a neighbour that slows them by these factors."""
    alone_ms, slowed_ms = model.latency_ms[part_pct], model.slowed_ms[part_pct]
    return [a + (f - 1) * s for a, f, s in zip(alone_ms, factors, slowed_ms, strict=True)]


def make_room(kept: dict[Any, Any], numbers: int = 1) -> None:
    """Empties answers that are kept if they are many, of ``numbers`` each: what is gone is computed anew."""
    if len(kept) >= min(KEPT_MAX, NUMBERS_MAX // numbers):
        kept.clear()


def _content(model: ModelProfile) -> tuple[object, ...]:
    return (model.slo_ms, model.memory_mb, *(times for _, times in sorted(model.latency_ms.items())))
