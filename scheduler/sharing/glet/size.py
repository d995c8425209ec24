"""How large a part a model needs: what it serves on each, the knee, and the least that is enough. PURE.

`Sizes` holds what can be said of models and device before any rate is known, so that a decision looks up and computes
little. It is shared by all decisions of a deployment.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from farside.scheduler.sharing.glet.profile import WHOLE_PCT, DeviceProfile, Load, ModelProfile

Knee = Literal["chord", "step", "ratio"]

# Of the last bits of sums: what is so near is equal.
ROUNDING = 1e-9
_STEP_LEAST = 0.05
_KEPT_LATENCIES = 20_000


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
        self.best_rate = {
            name: {part: self._most(model, part) for part in self.parts} for name, model in self.models.items()
        }
        self._latencies: dict[tuple[str, int, object], Sequence[float]] = {}
        self._alone: dict[tuple[str, float, int, object], list[tuple[int, float, float]]] = {}
        self._knees: dict[tuple[str, Knee], int] = {}

    def latencies(self, model: str, part_pct: int, pressure: object) -> Sequence[float]:
        """Milliseconds of batches of 1, 2, 3, ... on a part under a pressure; None: alone."""
        profile = self.models[model]
        if pressure is None:
            return profile.latency_ms[part_pct]
        key = (model, part_pct, pressure)
        found = self._latencies.get(key)
        if found is None:
            if len(self._latencies) >= _KEPT_LATENCIES:
                self._latencies.clear()
            factors = self.device.interference.factors(model, part_pct, pressure)
            alone_ms, slowed_ms = profile.latency_ms[part_pct], profile.slowed_ms[part_pct]
            found = [a + (f - 1) * s for a, f, s in zip(alone_ms, factors, slowed_ms, strict=True)]
            self._latencies[key] = found
        return found

    def alone(self, model: str, rate: float, part_pct: int, pressure: object) -> list[tuple[int, float, float]]:
        """Batches in which a part serves a rate of one model, with the work and the cycle in ms; longest cycles first.

        A cycle is as long as the batch takes to arrive, or as the SLO leaves, whichever is less [glet §2.2].
        """
        key = (model, rate, part_pct, pressure)
        found = self._alone.get(key)
        if found is None:
            if len(self._alone) >= _KEPT_LATENCIES:
                self._alone.clear()
            found = self._alone[key] = []
            slo_ms = self.models[model].slo_ms
            for at, busy_ms in enumerate(self.latencies(model, part_pct, pressure)):
                cycle_ms = min(1000 * (at + 1) / rate, slo_ms - busy_ms)
                if busy_ms <= cycle_ms:
                    found.append((at + 1, busy_ms, cycle_ms))
            found.sort(key=lambda one: -one[2])
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
        served = self.best_rate[model]
        return next((part for part in self.parts if served[part] >= rate * (1 - ROUNDING)), None)

    def gpus_min(self, rates: Mapping[str, float]) -> int:
        """GPUs that any sound plan of these rates needs at least.

        Each request a second costs at least min p / R(p) percent of a GPU: no glet serves more than R(p), as a cycle is
        no shorter than its batches and both together no longer than the SLO.
        """
        percent = 0.0
        for name, rate in rates.items():
            costs = [part / best for part, best in self.best_rate[name].items() if best > 0]
            percent += rate * min(costs) if costs else (math.inf if rate > 0 else 0.0)
        return math.ceil(percent / WHOLE_PCT - ROUNDING) if percent < math.inf else -1

    def _most(self, model: ModelProfile, part_pct: int) -> float:
        half_ms = model.slo_ms / 2 * (1 + ROUNDING)
        rates = (1000 * (at + 1) / ms for at, ms in enumerate(model.latency_ms[part_pct]) if ms <= half_ms)
        return max(rates, default=0.0)

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


def _content(model: ModelProfile) -> tuple[object, ...]:
    return (model.slo_ms, model.memory_mb, *(times for _, times in sorted(model.latency_ms.items())))
