"""Cluster energy saving as a service: busy nodes are heard, their maximum is forecast, nodes are kept. PURE.

[helios §4.1, §4.3.2]

How it works
  Its features are calendar, means, deviations, extremes and lags of busy nodes; its model, boosted trees for quantiles
  of the most that will be busy ahead, which the Model Update Engine has fitted anew each week and when they drift; its
  action, how many nodes to have on, is `Ces`. With ``forecast`` off, the default, there is nothing to fit, and rules
  on the recent past decide alone.

  Facts that make no sense are counted and not learned from. What nobody saw is taken to be as it was, up to a week;
  after a longer silence it begins where it left off, with the calendar as it is now.
"""

import math

from farside.errors import ConfigError
from farside.scheduler.energy.ces import Ces, CesSettings
from farside.scheduler.energy.feature import CAUSAL_FEATURES
from farside.scheduler.energy.learning import update_rule
from farside.scheduler.energy.online import OnlineForecast
from farside.scheduler.energy.policy import Seen
from farside.scheduler.energy.series import DAY_S, STEP_S
from farside.scheduler.predict.service import Advice, Fact, KeepNodes, ModelRecord, NodesSampled, UpdateRule

NAME = "ces"
LONGEST_SILENCE_S = 7 * DAY_S


class CesService:
    """Says how many nodes to have on when it hears how many were busy.

    Args:
        settings: The operator's risk, and whether forecasts are used.
        total: Nodes that there are now.
        step_s: The length of an interval, one fact each.
        holidays: Days since 1970-01-01.
    """

    def __init__(
        self, settings: CesSettings, *, total: float, step_s: float = STEP_S, holidays: frozenset[int] = frozenset()
    ) -> None:
        self.settings = settings
        self.step_s = step_s
        self.refused = 0  # facts that made no sense
        self.forecast = OnlineForecast(horizon_s=settings.forecast_s, step_s=step_s, holidays=holidays)
        known = self.forecast if settings.forecast else None
        self._policy = Ces(settings=settings, step_s=step_s, total=total, forecast=known)
        self._total = total
        self._active = math.nan
        self._last_s = math.nan
        self._step = 0

    @property
    def name(self) -> str:
        """``ces``."""
        return NAME

    @property
    def features(self) -> tuple[str, ...]:
        """Of the trees."""
        return CAUSAL_FEATURES

    @property
    def rule(self) -> UpdateRule:
        """Each week, when there is half as much again, and by drift; never before a day and a half more was seen."""
        return update_rule(self.step_s)

    @property
    def learnable(self) -> int:
        """Intervals; 0 when no forecast is wanted."""
        return len(self.forecast) if self.settings.forecast else 0

    @property
    def drift(self) -> float:
        """Of the quantiles' loss."""
        return self.forecast.drift

    def observe(self, fact: Fact) -> tuple[Advice, ...]:
        """How many nodes to have on, if the fact is of now."""
        if not isinstance(fact, NodesSampled):
            return ()
        if fact.at_s <= self._last_s or not fact.at_s < math.inf or fact.active < 0 or fact.total < 0:
            self.refused += 1
            return ()
        self._hear(fact)
        if math.isnan(fact.powered) or math.isnan(self._active):
            return ()
        target = self._policy.target(fact.powered)
        return (KeepNodes(nodes=target.nodes, reason=target.reason, is_forecast=target.is_forecast),)

    def _hear(self, fact: NodesSampled) -> None:
        """The interval, and those before it of which nobody told."""
        missed = 0 if math.isnan(self._last_s) else round((fact.at_s - self._last_s) / self.step_s) - 1
        self._last_s = fact.at_s
        if not math.isnan(self._active):
            for _ in range(min(missed, round(LONGEST_SILENCE_S / self.step_s))):
                self._watch(self._active)
        if fact.total > 0:
            self._total = fact.total
        if not math.isnan(fact.active):
            self._active = fact.active
        if not math.isnan(self._active):
            self.forecast.start_s = fact.at_s - (self._step + 1) * self.step_s  # so that the newest ends now
            self._watch(min(self._active, self._total))

    def _watch(self, active: float) -> None:
        if self.settings.forecast:
            self.forecast.watch(active, self._total)
        self._policy.watch(Seen(step=self._step, active=active, total=self._total))
        self._step += 1

    def fit(self, now_s: float) -> ModelRecord | None:
        """Trees for the quantiles; None without a forecast, or with too little seen."""
        metrics = self.forecast.fit() if self.settings.forecast else {}
        if not metrics:
            return None
        return ModelRecord(
            service=NAME,
            text=self.forecast.text,
            features=CAUSAL_FEATURES,
            trained_from_s=self.forecast.start_s,
            trained_to_s=now_s,
            trained_on=len(self.forecast),
            params={"horizon_s": self.forecast.steps * self.step_s, "step_s": self.step_s},
            metrics=metrics,
        )

    def use(self, record: ModelRecord) -> None:
        """Uses trees from a file; without ``forecast`` they are of no use."""
        if record.service != NAME:
            raise ConfigError(f"the model is of service '{record.service}', not {NAME}")
        told, own = (record.params.get(name) for name in ("horizon_s", "step_s")), (
            self.forecast.steps * self.step_s, self.step_s,
        )  # fmt: skip
        if tuple(told) != own or record.features != CAUSAL_FEATURES:
            raise ConfigError("the model is of another horizon, interval or features", hint="fit it again")
        self.forecast.use_text(record.text, record.metrics)
