"""Check of `farside doctor` on what a policy that goes by run times does without; the programs start anyway."""

from collections.abc import Iterator

from farside.cli.doctor.attempt import tried
from farside.config import ManagerConfig, SlurmConfig
from farside.kmod_shim.preflight import Check, Outcome
from farside.scheduler.configured_rules import rules_of
from farside.scheduler.order.catalog import TIMED, needs_of
from farside.scheduler.sim.learned_before import has_lightgbm


def trees_checks(config: ManagerConfig | SlurmConfig) -> Iterator[Check]:
    """A warning where models of run times are wanted and can't be fitted, which the program says at its start too."""
    rules, _ = tried("policy", lambda: rules_of(config))
    if rules is not None and needs_of(rules.order) in TIMED and not has_lightgbm():
        found = "LightGBM is not installed: run times are expected by the rolling estimate alone, without trees"
        yield Check(name="trees", outcome=Outcome.WARNING, found=found, advice="pip install lightgbm")
