"""The schedulers by name, and which of them claim to plan with interference. PURE."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from farside.scheduler.sharing.glet.baseline import HALF_PCT, greedy, squishy
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.portfolio import ideal
from farside.scheduler.sharing.glet.profile import DeviceProfile, ModelProfile, NoInterference
from farside.scheduler.sharing.glet.scaling import fewest
from farside.scheduler.sharing.glet.size import Sizes

Planner = Callable[[Sizes, Mapping[str, float], int], Plan | Refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A way to plan; ``with_interference``: what it plans is sound beside neighbours, too.

    ``at_any_size``: what tells in seconds how many GPUs would do, where ``plan`` itself is for few GPUs alone.
    """

    plan: Planner
    with_interference: bool
    at_any_size: Planner

    def sizes(self, models: Mapping[str, ModelProfile], device: DeviceProfile) -> Sizes:
        """Models and device as this scheduler sees them."""
        seen = device if self.with_interference else replace(device, interference=NoInterference())
        return Sizes(models, seen)


def _halves(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> Plan | Refusal:
    return squishy(sizes, rates, gpus, HALF_PCT)


# The names of the paper's figures.
SCHEDULERS: Mapping[str, Scheduler] = MappingProxyType(
    {
        "sbp": Scheduler(plan=squishy, with_interference=True, at_any_size=squishy),
        "half": Scheduler(plan=_halves, with_interference=False, at_any_size=_halves),
        "greedy": Scheduler(plan=greedy, with_interference=False, at_any_size=greedy),
        "glet": Scheduler(plan=fewest, with_interference=False, at_any_size=fewest),
        "glet+int": Scheduler(plan=fewest, with_interference=True, at_any_size=fewest),
        # Whatever `fewest` plans has a plan by search, too.
        "ideal": Scheduler(plan=ideal, with_interference=True, at_any_size=fewest),
    }
)
