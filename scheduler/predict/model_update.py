"""Model Update Engine and Resource Orchestrator: train services, pass on advice. PURE. [helios §4.1, Figure 10]

Time is that of the facts, so both run by a virtual clock as by the one on the wall. Where that one jumps back, nothing
is fitted until it has caught up; where it jumps ahead, a fit comes early. Neither does harm.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from farside.scheduler.predict.service import Advice, Fact, ModelRecord, Service, UpdateRule

MUCH_IS_NEW = "much is new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A trained model. ``reason``: from its rule; ``record``: None if there was too little data."""

    at_s: float
    service: str
    reason: str
    record: ModelRecord | None


@dataclass(slots=True, eq=False)
class UpdateEngine:
    """Trains one service by its rule.

    Attributes:
        service: Whose model it is.
        keep: Called with each model that was fitted, for example to write it to a file.
        updates: All fits so far.
    """

    service: Service
    keep: Callable[[ModelRecord], None] | None = None
    updates: list[Update] = field(default_factory=list)
    _fitted_s: float = math.nan
    _fitted_on: int = 0

    def check(self, now_s: float) -> Update | None:
        """Fits if the rule says so; at once for all that is new."""
        # The first fact starts the clock of ``every_s``.
        if math.isnan(self._fitted_s):
            self._fitted_s = now_s
        reason = self._reason(now_s)
        return self.update(now_s, reason) if reason else None

    def update(self, now_s: float, reason: str) -> Update:
        """Fits now, whatever the rule says."""
        record = self.service.fit(now_s)
        self._fitted_s, self._fitted_on = now_s, self.service.learnable
        made = Update(at_s=now_s, service=self.service.name, reason=reason, record=record)
        self.updates.append(made)
        if record is not None and self.keep is not None:
            self.keep(record)
        return made

    def _reason(self, now_s: float) -> str:
        return due(
            self.service.rule, known=self.service.learnable, fitted_on=self._fitted_on,
            since_fit_s=now_s - self._fitted_s, drift=self.service.drift,
        )  # fmt: skip


def due(rule: UpdateRule, *, known: int, fitted_on: int, since_fit_s: float, drift: float) -> str:
    """Why a model trained on ``fitted_on`` facts should be trained again now; empty: it should not."""
    new = known - fitted_on
    # Before the reasons, which share this condition.
    if new < rule.new_facts:
        return ""
    if since_fit_s >= rule.every_s:
        return "its time has come"
    if drift > rule.drift:
        return "its errors have grown"
    # Last: a caller may have a reason to wait for more that is new.
    if new >= rule.growth * fitted_on:
        return MUCH_IS_NEW
    return ""


class Orchestrator:
    """Passes events to all services, trains them, and passes on their advice.

    Args:
        services: Each independent of the others; advice comes in their order.
        keep: See `UpdateEngine`.
    """

    def __init__(self, services: Sequence[Service], keep: Callable[[ModelRecord], None] | None = None) -> None:
        self.engines = tuple(UpdateEngine(service, keep) for service in services)

    def tell(self, fact: Fact) -> tuple[Advice, ...]:
        """Handle an event and return the advice. Training comes after the answer, which does not wait for it."""
        advice: list[Advice] = []
        for engine in self.engines:
            advice += engine.service.observe(fact)
        for engine in self.engines:
            engine.check(fact.at_s)
        return tuple(advice)

    @property
    def updates(self) -> tuple[Update, ...]:
        """All fits so far, by service, then by time."""
        return tuple(update for engine in self.engines for update in engine.updates)
