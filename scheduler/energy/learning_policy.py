"""Energy policies with a forecast that is trained while they run, without a series beforehand. PURE.

How it works
  Interval by interval such a policy is shown what was seen, as any policy. When trees should be fitted, `lesson` has
  what to: at first as soon as enough is known, then by the rule of the services (predict/model_update.py). The caller
  has them fitted beside its other work and hands in the result (`take`); until then the old trees decide, or at first
  none.

  A past that is known from the start (`recall`) is gone through as in a replay: trees are fitted to the older four
  fifths, and forecast the rest. So it is known at once how good they are, and the decisions that follow are the
  replay's with its ``--train-to`` there.
"""

from collections.abc import Sequence
from typing import Protocol

from farside.scheduler.energy.busy_series import DAY_S
from farside.scheduler.energy.ces import Ces, CesSettings
from farside.scheduler.energy.forecast import HELD_BACK_SHARE, LEAST_PROOF
from farside.scheduler.energy.forecast_lesson import Fit, Learned, Lesson, learned_from, needed_steps
from farside.scheduler.energy.forecast_proof import ForecastProof
from farside.scheduler.energy.helios_policy import Paper, PaperSettings
from farside.scheduler.energy.online_forecast import OnlineForecast
from farside.scheduler.energy.online_means import OnlineMeans
from farside.scheduler.energy.policy import EnergyPolicy, Seen, Target
from farside.scheduler.energy.seen_series import SeenSeries
from farside.scheduler.predict.model_update import due
from farside.scheduler.predict.service import UpdateRule

# What policies are shown of the past at most. Longer ago counts for little: records fade by half in 14 days.
PAST_S = 28 * DAY_S


def update_rule(step_s: float) -> UpdateRule:
    """Rule for training: each week, at half as much data again, and by drift; at first after a day and a half."""
    return UpdateRule(growth=0.5, new_facts=max(1, round(1.5 * DAY_S / step_s)))


class Forecast(Protocol):
    """A forecast that learns. ``steps``: how far it looks ahead; ``seen``: what it has been shown."""

    steps: int
    seen: SeenSeries
    proof: ForecastProof

    @property
    def is_fitted(self) -> bool:
        """Whether it has trees."""
        ...

    def watch(self, active: float, total: float) -> None:
        """One more interval is over."""
        ...

    def lesson(self) -> Lesson | None:
        """What trees would be fitted to now; None: too little was seen."""
        ...

    def use(self, learned: Learned) -> None:
        """Forecasts by these trees from the next interval on."""
        ...


class LearningPolicy:
    """Energy policy that learns its forecast.

    Args:
        policy: Decides, by the forecast.
        forecast: Has seen nothing yet.
        step_s: The length of an interval.
        without: What happens while there is no forecast, in words.
        if_poor: What happens while the forecast is no better than persistence, in words; empty: nothing else.
    """

    def __init__(
        self, policy: EnergyPolicy, forecast: Forecast, *, step_s: float, without: str, if_poor: str = ""
    ) -> None:
        self.step_s = step_s
        self.needed = needed_steps(forecast.steps)
        self._policy, self._forecast = policy, forecast
        self._without, self._if_poor = without, if_poor
        self._fitted_on = self._tried_on = 0
        self._problem = ""
        self.begin(0.0)

    def begin(self, start_s: float) -> None:
        """When the first interval begins: seconds since 1970, of the cluster's local time."""
        self._forecast.seen.start_s = start_s

    @property
    def is_fitted(self) -> bool:
        """Whether the forecast has trees."""
        return self._forecast.is_fitted

    def watch(self, seen: Seen) -> None:
        """One more interval is over."""
        self._forecast.watch(seen.active, seen.total)
        self._policy.watch(seen)

    def target(self, powered: float) -> Target:
        """Return the target of the policy."""
        return self._policy.target(powered)

    def first_lesson(self) -> Lesson:
        """What trees of all that was seen are fitted to, once that is ``needed`` intervals."""
        lesson = self._forecast.lesson()
        assert lesson is not None, "enough is known"
        return lesson

    def lesson(self) -> Lesson | None:
        """Data for training now; None: not due, or too little data."""
        known = len(self._forecast.seen)
        reason = due(
            update_rule(self.step_s), known=known, fitted_on=self._tried_on,
            since_fit_s=(known - self._tried_on) * self.step_s, drift=self._forecast.proof.drift,
        )  # fmt: skip
        return self._forecast.lesson() if reason else None

    def take(self, learned: Learned | str) -> None:
        """Take the result of training. After a failure the old trees stay until training is due again."""
        self._tried_on = len(self._forecast.seen)
        if isinstance(learned, str):
            # The old trees stay. `_tried_on` has moved, so that the next try waits until a fit is due again.
            self._problem = learned
            return
        self._forecast.use(learned)
        self._fitted_on, self._problem = self._tried_on, ""

    @property
    def remark(self) -> str:
        """Remark on the quality of the forecast, and whether it is used."""
        if not self._forecast.is_fitted:
            return f"no forecast {self._why_none()}; {self._without}"
        proof = self._forecast.proof
        words = f"a forecast by trees of {self._days(self._fitted_on)} days"
        if proof.judged < LEAST_PROOF:
            words += ", of which too little is known yet to say how good it is"
        else:
            words += ", lately better than none" if proof.is_better else ", lately no better than none"
        if self._if_poor and not proof.is_better:
            words += f"; {self._if_poor}"
        return words + (f"; it could not be fitted again: {self._problem}" if self._problem else "")

    def _why_none(self) -> str:
        known = len(self._forecast.seen)
        if known < self.needed:
            return f"before {self._days(self.needed)} days are known, {self._days(known)} are"
        return f"as it could not be fitted: {self._problem}" if self._problem else "yet, as it is being fitted"

    def _days(self, steps: int) -> str:
        return f"{steps * self.step_s / DAY_S:.1f}"


class LearningCes(LearningPolicy):
    """CES that learns its forecast.

    Args:
        settings: With ``forecast``.
        total: Nodes that there are at first.
        step_s: The length of an interval.
        holidays: Days since 1970-01-01.
    """

    def __init__(
        self, settings: CesSettings, *, total: float, step_s: float, holidays: frozenset[int] = frozenset()
    ) -> None:
        self.forecast = OnlineForecast(horizon_s=settings.forecast_s, step_s=step_s, holidays=holidays)
        super().__init__(
            Ces(settings=settings, step_s=step_s, total=total, forecast=self.forecast),
            self.forecast,
            step_s=step_s,
            without="rules alone decide",
            if_poor="nobody is woken by it" if settings.wake_ahead else "",
        )


class LearningPaper(LearningPolicy):
    """Algorithm 2 of the paper with a forecast that it learns. [helios §4.3.2]

    It needs a falling forecast to let a node sleep, so until it has a forecast all nodes stay on. As in the paper the
    forecast counts whether it is better than none or not.

    Args:
        settings: With causal features.
        step_s: The length of an interval.
        holidays: Days since 1970-01-01.
    """

    def __init__(self, settings: PaperSettings, *, step_s: float, holidays: frozenset[int] = frozenset()) -> None:
        self.forecast = OnlineMeans(near_s=settings.future_s, step_s=step_s, holidays=holidays)
        super().__init__(
            Paper(settings=settings, outlook=self.forecast, step_s=step_s, begins_low=False),
            self.forecast,
            step_s=step_s,
            without="no node is put to sleep",
        )


def recall(policy: EnergyPolicy, past: Sequence[float], total: float, fit: Fit = learned_from) -> None:
    """Shows a policy what was busy in intervals before now. One that learns is fitted on the way, by ``fit``."""
    fit_after = 0
    if isinstance(policy, LearningPolicy) and len(past) >= policy.needed:
        fit_after = max(policy.needed, round(len(past) * (1 - HELD_BACK_SHARE)))
    for step, active in enumerate(past):
        policy.watch(Seen(step=step, active=min(active, total), total=total))
        if step + 1 == fit_after and isinstance(policy, LearningPolicy):
            policy.take(fit(policy.first_lesson()))
