"""What a policy knows before the first live job: past jobs and a model from files, as its settings name them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from farside.config import ManagerConfig, SlurmConfig
from farside.errors import ConfigError
from farside.scheduler.admission.rules import Rules
from farside.scheduler.configured_rules import rules_of
from farside.scheduler.order.catalog import TIMED, Needs, needs_of
from farside.scheduler.predict.gpu_time import NAME
from farside.scheduler.predict.job_history import Past
from farside.scheduler.predict.learned_times import LIVE, LearnedTimes
from farside.scheduler.predict.model_files import ModelStore
from farside.scheduler.predict.service import ModelRecord
from farside.scheduler.sim.estimator import past_of
from farside.scheduler.sim.trace.read import read_trace
from farside.scheduler.sim.trace.read_services import with_prior

NO_TREES = "LightGBM is not installed, so run times are expected by the rolling estimate alone, without trees"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedBefore:
    """The rules, and what their policy begins with.

    Attributes:
        rules: With the policy's prior, where it has one.
        history: Past jobs by submit time.
        record: A model that was fitted earlier; None: none is named.
    """

    rules: Rules
    history: tuple[Past, ...] = ()
    record: ModelRecord | None = None

    @property
    def is_timed(self) -> bool:
        """Whether the policy asks how long jobs will run."""
        return needs_of(self.rules.order) in TIMED

    @property
    def lacks_trees(self) -> bool:
        """Whether it asks, and no trees can be fitted here to say it: `NO_TREES`."""
        return self.is_timed and not has_lightgbm()

    def times(self, *, fits_at_once: bool = False) -> LearnedTimes | None:
        """A new estimator, which knows no live job yet; None: the policy asks for none."""
        if not self.is_timed:
            return None
        params = replace(LIVE, use="rolling") if self.lacks_trees else LIVE
        return LearnedTimes(params, history=self.history, record=self.record, fits_at_once=fits_at_once)


def learned_before(config: ManagerConfig | SlurmConfig) -> LearnedBefore:
    """The rules of the settings, with what the files say that `policy_history` and `policy_models` name.

    Raises:
        ConfigError: A rule can't be used; or the policy has no use for a file, or it is missing, damaged, empty or of
            another version.
        Unavailable: There is a model, and LightGBM is not installed.
    """
    rules = rules_of(config)
    needs = needs_of(rules.order)
    if config.policy_models != Path() and needs not in TIMED:
        raise ConfigError(
            f"policy_models: {config.policy} asks for no model of run times", hint="leave it out, or take policy = qssf"
        )
    if config.policy_history == Path():
        return LearnedBefore(rules=rules, record=_record(config))
    if needs is Needs.ENDED_JOBS:
        with _named("policy_history", "name a file of GPU times, or leave it out"):
            return LearnedBefore(rules=replace(rules, order=with_prior(rules.order, config.policy_history)))
    if needs not in TIMED:
        raise ConfigError(
            f"policy_history: {config.policy} learns nothing from past jobs",
            hint="leave it out; gittins, qssf, sjf, srtf and srsf learn from them",
        )
    with _named("policy_history", "name a job log in a format of `farside sim`, or leave it out"):
        history = past_of(read_trace(config.policy_history).jobs)
    return LearnedBefore(rules=rules, history=history, record=_record(config))


def has_lightgbm() -> bool:
    """Whether trees can be fitted here; otherwise jobs are expected by the rolling estimate alone."""
    return find_spec("lightgbm") is not None


def _record(config: ManagerConfig | SlurmConfig) -> ModelRecord | None:
    if config.policy_models == Path():
        return None
    with _named("policy_models", "name the folder of `farside predict fit`, or leave it out"):
        record = ModelStore(config.policy_models).load(NAME)
        LearnedTimes(record=record)  # a model that can't be used is refused now, and not once jobs wait
    return record


@contextmanager
def _named(setting: str, hint: str) -> Iterator[None]:
    """Errors about a file say which setting named it, and what to do where they do not say that."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error.args[0]}", hint=error.hint or hint) from error
