"""Catalogue of energy policies by name, with the forecasts that they need. PURE."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType

import numpy as np

from farside.errors import ConfigError, Unavailable
from farside.scheduler.energy.accuracy import pinball, smape_pct
from farside.scheduler.energy.busy_series import DAY_S, STEP_S, NodeSeries
from farside.scheduler.energy.ces import FORECAST_S, Ces, CesSettings
from farside.scheduler.energy.forecast import MaxForecast, forecast_artifact, forecast_max, forecast_mean
from farside.scheduler.energy.forecast_features import next_max, next_mean
from farside.scheduler.energy.forecast_lesson import needed_steps
from farside.scheduler.energy.helios_policy import Outlook, Paper, PaperSettings
from farside.scheduler.energy.learning_policy import PAST_S, LearningCes, LearningPaper
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.energy.seen_series import KEPT_STEPS
from farside.scheduler.energy.shadow_rules import Risk
from farside.scheduler.energy.simple_policies import AllOn, KeepRecent, RuleSettings, VanillaSettings
from farside.scheduler.energy.tune_two_line import tuned_rule
from farside.scheduler.settings import chosen, from_settings
from farside.scheduler.table import Floats

# As in the paper's code.
MEAN_HORIZON_S = 5 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A series, the interval that forecasts are trained up to, and the window that is replayed."""

    series: NodeSeries
    train_to: int
    begin: int
    end: int
    holidays: frozenset[int] = frozenset()

    def steps(self, horizon_s: float) -> int:
        """Intervals of a horizon."""
        return max(1, round(horizon_s / self.series.step_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How good the forecast over ``horizon_s`` was in the window, and what the policy made of it; NaN: not known.

    Attributes:
        horizon_s: How far ahead the forecast looks that is used; 5 h, the paper's, where none is.
        smape: Its error in percent: of the mean ahead, or, where quantiles are used, of the middle one of the maximum.
        persistence_smape: That of what is busy now.
        is_used: Decisions depend on it.
        remark: What to say of it.
        quantile_loss: The mean pinball loss of the quantiles used, nodes.
        persistence_quantile_loss: That of what is busy now.
    """

    horizon_s: float
    smape: float
    persistence_smape: float
    is_used: bool
    remark: str
    quantile_loss: float = math.nan
    persistence_quantile_loss: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Policy ready to watch a series, with remarks on its settings and its forecast.

    ``judge`` takes seconds where a model is trained only to be judged.
    """

    policy: EnergyPolicy
    judge: Callable[[], Outcome]
    remark: str = ""


def prepare(name: str, settings: Mapping[str, str], question: Question) -> Prepared:
    """Prepare the policy that a user named.

    Raises:
        ConfigError: The name or a setting is wrong, or the series too short for what was asked.
    """
    try:
        return chosen(name, POLICIES, "energy policy")(settings, question)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def check_replayed_holidays(name: str, settings: Mapping[str, str]) -> None:
    """Refuse holidays, of ``--holidays`` or ``--holiday``, for a replay in which no forecast would know them.

    Raises:
        ConfigError: It is such a policy, or the name or a setting is wrong.
    """
    chosen(name, POLICIES, "energy policy")
    if name == "ces":
        knows = from_settings(CesSettings, settings, of=name).forecast
    else:
        knows = name == "paper" and from_settings(PaperSettings, settings, of=name).features == "causal"
    if not knows:
        # The published code's features have no holidays.
        policy = f"paper with features={settings['features']}" if name == "paper" else name
        raise holidays_refused(policy, of="--holidays, --holiday", settings="with --set")


def holidays_refused(policy: str, *, of: str, settings: str = "") -> ConfigError:
    """Refusal of holidays that no forecast would know. ``of``: what gave them; ``settings``: where the policy's go."""
    hint = f"set forecast=true {settings}, or leave it out" if policy == "ces" else "leave it out"
    return ConfigError(f"{of}: is for forecasts, and {policy} makes none", hint=hint)


def _none(settings: Mapping[str, str], question: Question) -> Prepared:
    from_settings(_NoSettings, settings, of="none")
    return Prepared(policy=AllOn(), judge=partial(_unused, question))


def _vanilla(settings: Mapping[str, str], question: Question) -> Prepared:
    told = from_settings(VanillaSettings, settings, of="vanilla")
    step_s = question.series.step_s
    return Prepared(
        policy=KeepRecent(buffer_nodes=told.buffer_nodes, keep_s=step_s, step_s=step_s),
        judge=partial(_unused, question),
    )


def _rule(settings: Mapping[str, str], question: Question) -> Prepared:
    told = from_settings(RuleSettings, settings, of="rule")
    buffer_nodes, keep_s, remark = told.buffer_nodes, told.keep_s, ""
    risk = Risk(wakeups_per_day=told.wakeups_per_day, short_nodes_per_day=told.short_nodes_per_day)
    if np.isfinite(min(risk.wakeups_per_day, risk.short_nodes_per_day)):
        _check_not_both(settings)
        tuned = tuned_rule(question.series, question.begin, risk)
        buffer_nodes, keep_s = tuned.buffer_nodes, tuned.keep_s
        remark = (
            f"tuned before --from to {buffer_nodes} nodes, {keep_s / 3600:.3g} h: "
            f"{tuned.wakeups_per_day:.2f} wake-ups a day there"
        )
    policy = KeepRecent(buffer_nodes=buffer_nodes, keep_s=keep_s, step_s=question.series.step_s)
    return Prepared(policy=policy, judge=partial(_unused, question), remark=remark)


def _check_not_both(settings: Mapping[str, str]) -> None:
    told = [name for name in ("buffer_nodes", "keep_s") if name in settings]
    if told:
        raise ConfigError(
            f"rule: {told[0]} and a risk to tune it to exclude each other", hint="leave one of them out of --set"
        )


def _paper(settings: Mapping[str, str], question: Question) -> Prepared:
    told = from_settings(PaperSettings, settings, of="paper")
    near, far = question.steps(told.future_s), question.steps(2 * told.future_s)
    series = question.series
    if told.features == "causal":
        outlook = Outlook(
            near=forecast_mean(series, near, question.train_to, question.holidays).raw,
            far=forecast_mean(series, far, question.train_to, question.holidays).raw,
        )
        remark = "causal"
    else:
        ago_s = 3600.0 if told.features == "artifact" else 2 * told.future_s
        one = forecast_artifact(series, question.train_to, question.begin, ago_s)
        outlook = Outlook(near=next_mean(one, near, with_now=True), far=next_mean(one, far, with_now=True))
        remark = "looks into the future, as the published code does" if told.features == "artifact" else "causal"
    judge = partial(_outcome, question, near, outlook.near, is_used=True, remark=remark)
    return Prepared(policy=Paper(settings=told, outlook=outlook, step_s=series.step_s), judge=judge)


def _ces(settings: Mapping[str, str], question: Question) -> Prepared:
    told = from_settings(CesSettings, settings, of="ces")
    series = question.series
    forecast = max_forecast(question, told.forecast_s) if told.forecast else None
    policy = Ces(settings=told, step_s=series.step_s, total=float(series.total[0]), forecast=forecast)
    if forecast is None:
        return Prepared(policy=policy, judge=partial(_unused, question))
    return Prepared(policy=policy, judge=partial(_max_outcome, question, forecast))


def max_forecast(question: Question, horizon_s: float = FORECAST_S) -> MaxForecast:
    """Quantiles of the most that will be busy until a node that falls asleep now has earned its wake-up."""
    steps = question.steps(horizon_s)
    return forecast_max(question.series, steps, question.train_to, holidays=question.holidays)


def _max_outcome(question: Question, made: MaxForecast) -> Outcome:
    """Accuracy of the used quantiles of the maximum, over the time that they look ahead."""
    window = slice(question.begin, question.end)
    came, now = next_max(question.series.active, made.steps)[window], question.series.active[window]
    levels = made.levels[window]
    losses = np.array(
        [(pinball(levels[:, at], came, of), pinball(now, came, of)) for at, of in enumerate(made.quantiles)]
    )
    middle = made.quantiles.index(0.5)
    ours, persistence = (float(loss) for loss in losses.mean(axis=0))
    return Outcome(
        horizon_s=made.steps * question.series.step_s,
        smape=smape_pct(levels[:, middle], came),
        persistence_smape=smape_pct(now, came),
        is_used=True,
        remark="quantiles of the maximum ahead are signals beside others, used where they have served better; "
        + _against_persistence(ours, persistence),
        quantile_loss=ours,
        persistence_quantile_loss=persistence,
    )


def _against_persistence(error: float, persistence: float) -> str:
    if math.isnan(error) or math.isnan(persistence):
        return "how good it is, is not known"
    return "better than persistence" if error < persistence else "no better than persistence"


def _unused(question: Question) -> Outcome:
    return _mean_outcome(question, is_used=False, remark="no decision depends on a forecast")


def _mean_outcome(question: Question, *, is_used: bool, remark: str) -> Outcome:
    steps = question.steps(MEAN_HORIZON_S)
    try:
        values = forecast_mean(question.series, steps, question.train_to, question.holidays).values
    except ValueError:  # too little to train on; no decision depends on this forecast
        values = np.full(len(question.series), np.nan)
    return _outcome(question, steps, values, is_used=is_used, remark=remark)


def _outcome(question: Question, steps: int, values: Floats, *, is_used: bool, remark: str) -> Outcome:
    window = slice(question.begin, question.end)
    came = next_mean(question.series.active, steps)[window]
    smape, persistence = smape_pct(values[window], came), smape_pct(question.series.active[window], came)
    return Outcome(
        horizon_s=steps * question.series.step_s,
        smape=smape,
        persistence_smape=persistence,
        is_used=is_used,
        remark=f"{remark}; {_against_persistence(smape, persistence)}",
    )


def make_online(
    name: str, settings: Mapping[str, str], step_s: float = STEP_S, holidays: frozenset[int] = frozenset()
) -> Callable[[int], EnergyPolicy]:
    """Function that builds the named policy for a number of nodes, without a past.

    Who runs a `LearningPolicy` that comes of it has its trees fitted.

    Args:
        name: The policy.
        settings: Its settings.
        step_s: The length of an interval.
        holidays: Days since 1970-01-01, for forecasts.

    Raises:
        ConfigError: The name or a setting is wrong, or it would need to know the future.
        Unavailable: It learns, and LightGBM is not installed.
    """
    if name == "none":
        from_settings(_NoSettings, settings, of=name)
        return lambda _: AllOn()
    if name == "vanilla":
        vanilla = from_settings(VanillaSettings, settings, of=name)
        return lambda _: KeepRecent(buffer_nodes=vanilla.buffer_nodes, keep_s=step_s, step_s=step_s)
    if name == "rule":
        rule = from_settings(RuleSettings, settings, of=name)
        if np.isfinite(min(rule.wakeups_per_day, rule.short_nodes_per_day)):
            raise ConfigError("rule: there is no past to tune it on", hint="set buffer_nodes and keep_s, or take ces")
        return lambda _: KeepRecent(buffer_nodes=rule.buffer_nodes, keep_s=rule.keep_s, step_s=step_s)
    if name == "paper":
        paper = from_settings(PaperSettings, settings, of=name)
        if paper.features != "causal":
            raise ConfigError(
                f"paper: features={paper.features} is for replays of a series, to compare with the published code",
                hint="leave features out: causal ones know what is known at the time",
            )
        _check_learnable("paper", "future_s", paper.future_s, 2 * paper.future_s, step_s)
        return lambda _: LearningPaper(paper, step_s=step_s, holidays=holidays)
    chosen(name, POLICIES, "energy policy")
    ces = from_settings(CesSettings, settings, of=name)
    if not ces.forecast:
        return lambda nodes: Ces(settings=ces, step_s=step_s, total=nodes)
    _check_learnable("ces", "forecast_s", ces.forecast_s, ces.forecast_s, step_s)
    return lambda nodes: LearningCes(ces, total=nodes, step_s=step_s, holidays=holidays)


def _check_learnable(policy: str, setting: str, told_s: float, horizon_s: float, step_s: float) -> None:
    """Refuse a forecast that could never be learned. ``horizon_s``: how far it looks ahead, by the ``setting``."""
    if find_spec("lightgbm") is None:
        what, way_out = ("ces: forecast=true", "leave forecast out") if policy == "ces" else (policy, "take ces")
        raise Unavailable(f"{what} needs LightGBM", hint=f"pip install lightgbm, or {way_out}")
    if step_s > told_s:
        hint = f"let {setting} be no shorter than an interval"
        raise ConfigError(f"{policy}: {setting} is {told_s:g} s, an interval {step_s:g} s", hint=hint)
    needed = needed_steps(max(1, round(horizon_s / step_s)))
    if needed * step_s > PAST_S:
        known = f"{needed * step_s / DAY_S:.0f} days, and {PAST_S / DAY_S:.0f} are known after a start"
        hint = f"take shorter ones, or a smaller {setting}"
        raise ConfigError(f"{policy}: a forecast in intervals of {step_s:g} s needs {known}", hint=hint)
    if needed > KEPT_STEPS:
        least_s = math.ceil(step_s * needed / KEPT_STEPS / 60) * 60
        raise ConfigError(
            f"{policy}: a forecast of {horizon_s:g} s in intervals of {step_s:g} s needs {needed:,} of them, and "
            f"{KEPT_STEPS:,} are kept", hint=f"intervals of {least_s} s will do, or a smaller {setting}",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoSettings:
    """Nothing can be set."""


POLICIES: Mapping[str, Callable[[Mapping[str, str], Question], Prepared]] = MappingProxyType(
    {"ces": _ces, "paper": _paper, "rule": _rule, "vanilla": _vanilla, "none": _none}
)
