"""CES with a forecast that is trained while the policy runs, without a series beforehand. PURE.

How it works
  Interval by interval it is shown what was seen, as any policy. When trees should be fitted, `lesson` has what to: at
  first as soon as enough is known, then by the rule of the services (predict/model_update.py). The caller has them
  fitted beside its other work and hands in the result (`take`); until then the old trees decide, or at first none.

  A past that is known from the start (`recall`) is gone through as in a replay: trees are fitted to the older four
  fifths, and forecast the rest. So it is known at once how good they are, and the decisions that follow are the
  replay's with its ``--train-to`` there.
"""

from collections.abc import Callable, Sequence

from farside.scheduler.energy.busy_series import DAY_S
from farside.scheduler.energy.ces import Ces, CesSettings
from farside.scheduler.energy.forecast import HELD_BACK_SHARE, LEAST_PROOF
from farside.scheduler.energy.online_forecast import Learned, Lesson, OnlineForecast, learned_from, needed_steps
from farside.scheduler.energy.policy import EnergyPolicy, Seen, Target
from farside.scheduler.predict.model_update import due
from farside.scheduler.predict.service import UpdateRule

# What policies are shown of the past at most. Longer ago counts for little: records fade by half in 14 days.
PAST_S = 28 * DAY_S
# Trees, or why there are none.
Fit = Callable[[Lesson], Learned | str]


def update_rule(step_s: float) -> UpdateRule:
    """Rule for training: each week, at half as much data again, and by drift; at first after a day and a half."""
    return UpdateRule(growth=0.5, new_facts=max(1, round(1.5 * DAY_S / step_s)))


class LearningCes:
    """CES that learns its forecast.

    Args:
        settings: With ``forecast``.
        total: Nodes that there are at first.
        step_s: The length of an interval.
    """

    def __init__(self, settings: CesSettings, *, total: float, step_s: float) -> None:
        self.settings = settings
        self.step_s = step_s
        self.forecast = OnlineForecast(horizon_s=settings.forecast_s, step_s=step_s)
        self.needed = needed_steps(self.forecast.steps)
        self._ces = Ces(settings=settings, step_s=step_s, total=total, forecast=self.forecast)
        self._fitted_on = self._tried_on = 0
        self._problem = ""
        self.begin(0.0)

    def begin(self, start_s: float) -> None:
        """When the first interval begins: seconds since 1970, of the cluster's local time."""
        self.forecast.start_s = start_s

    def watch(self, seen: Seen) -> None:
        """One more interval is over."""
        self.forecast.watch(seen.active, seen.total)
        self._ces.watch(seen)

    def target(self, powered: float) -> Target:
        """Return the target of CES."""
        return self._ces.target(powered)

    def lesson(self) -> Lesson | None:
        """Data for training now; None: not due, or too little data."""
        known = len(self.forecast)
        reason = due(
            update_rule(self.step_s), known=known, fitted_on=self._tried_on,
            since_fit_s=(known - self._tried_on) * self.step_s, drift=self.forecast.drift,
        )  # fmt: skip
        return self.forecast.lesson() if reason else None

    def take(self, learned: Learned | str) -> None:
        """Take the result of training. After a failure the old trees stay until training is due again."""
        self._tried_on = len(self.forecast)
        if isinstance(learned, str):
            # The old trees stay. `_tried_on` has moved, so that the next try waits until a fit is due again.
            self._problem = learned
            return
        self.forecast.use(learned)
        self._fitted_on, self._problem = self._tried_on, ""

    @property
    def remark(self) -> str:
        """Remark on the quality of the forecast, and whether it is used."""
        if not self.forecast.is_fitted:
            return f"no forecast {self._why_none()}; rules alone decide"
        words = f"a forecast by trees of {self._days(self._fitted_on)} days"
        if self.forecast.judged < LEAST_PROOF:
            words += ", of which too little is known yet to say how good it is"
        else:
            words += ", lately better than none" if self.forecast.is_better else ", lately no better than none"
        if self.settings.wake_ahead and not self.forecast.is_better:
            words += "; nobody is woken by it"
        return words + (f"; it could not be fitted again: {self._problem}" if self._problem else "")

    def _why_none(self) -> str:
        known = len(self.forecast)
        if known < self.needed:
            return f"before {self._days(self.needed)} days are known, {self._days(known)} are"
        return f"as it could not be fitted: {self._problem}" if self._problem else "yet, as it is being fitted"

    def _days(self, steps: int) -> str:
        return f"{steps * self.step_s / DAY_S:.1f}"


def recall(policy: EnergyPolicy, past: Sequence[float], total: float, fit: Fit = learned_from) -> None:
    """Shows a policy what was busy in intervals before now. One that learns is fitted on the way, by ``fit``."""
    fit_after = 0
    if isinstance(policy, LearningCes) and len(past) >= policy.needed:
        fit_after = max(policy.needed, round(len(past) * (1 - HELD_BACK_SHARE)))
    for step, active in enumerate(past):
        policy.watch(Seen(step=step, active=min(active, total), total=total))
        if step + 1 == fit_after and isinstance(policy, LearningCes):
            lesson = policy.forecast.lesson()
            assert lesson is not None, "enough is known"
            policy.take(fit(lesson))
