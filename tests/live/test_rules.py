"""What a manager's config says of scheduling is refused where it can't be meant."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from farside.config import ManagerConfig, SlurmConfig, load_config
from farside.config.load import ConfigProblems
from farside.errors import ConfigError
from farside.scheduler.configured_rules import left_out_over_slurm, rules_of
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.order.catalog import ORDERS
from farside.scheduler.placement.catalog import PLACEMENTS
from farside.scheduler.placement.skew import Skew
from farside.scheduler.settings import settings_of
from tests.live.facts import gpus, joined
from tests.live.world import World


def test_a_reservation_that_would_begin_at_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="reserve_after_s: must be at least 1 s, or 0 for never"):
        rules_of(ManagerConfig(reserve_after_s=1e-9))


def test_no_reservation_is_never() -> None:
    assert rules_of(ManagerConfig(reserve_after_s=0.0)).reserve_after_s == float("inf")


def test_a_placement_that_counts_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not say on which nodes"):
        rules_of(ManagerConfig(placement="count"))


def test_the_settings_of_a_placement_reach_it() -> None:
    rules = rules_of(ManagerConfig(placement="skew", placement_settings="packlimit=0.5; unmeasured=relax"))

    assert rules.placement == Skew(packlimit=0.5, unmeasured="relax")


@pytest.mark.parametrize(
    ("placement", "told", "why"),
    [
        ("skew", "packlimit", "placement_settings: 'packlimit' is not NAME=VALUE"),
        ("skew", "packlimit=2", "skew: packlimit: must be a share from 0 to 1, is 2"),
        ("consolidate", "packlimit=0.5", "consolidate: no setting 'packlimit'"),
    ],
)
def test_a_setting_that_a_placement_does_not_take_is_refused(placement: str, told: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        rules_of(ManagerConfig(placement=placement, placement_settings=told))


def test_a_job_that_names_no_cpus_needs_none_under_yarn() -> None:
    """On nodes with few CPUs it waited for 6 a GPU that nobody had asked for, and blocked all behind it."""
    w = World(rules_of(ManagerConfig(policy="yarn-cs", placement="yarn")), nodes=0)
    w.does(joined("n0", "n0", boot_id="boot-1", cpus=2, gpus=gpus(2, "H200")))
    job = w.submit(2)

    assert w.phase(job) is Phase.STARTING


@pytest.mark.parametrize("guess", ["worker_cpus", "server_cpus"])
def test_cpus_that_no_job_has_named_are_refused(guess: str) -> None:
    with pytest.raises(ConfigError, match=f"^placement_settings: yarn: {guess} is for logs whose jobs name no CPUs"):
        rules_of(ManagerConfig(placement="yarn", placement_settings=f"{guess}=0"))


def test_a_limit_that_is_learned_is_taken() -> None:
    rules = rules_of(ManagerConfig(placement="skew", placement_settings="relearn_jobs=100"))

    assert rules.placement == Skew(relearn_jobs=100)


def test_a_limit_that_is_learned_is_refused_without_scipy_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import farside.scheduler.placement as placements

    monkeypatch.delattr(placements, "packlimit", raising=False)
    monkeypatch.delitem(sys.modules, "farside.scheduler.placement.packlimit", raising=False)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)

    with pytest.raises(ConfigError, match=r"^placement_settings: relearn_jobs needs SciPy, which is not here \("):
        rules_of(ManagerConfig(placement="skew", placement_settings="relearn_jobs=100"))


def test_the_documents_have_every_placement_with_its_settings() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "manager.md").read_text()
    table = manual.partition("| placement | a job's nodes |")[2].partition("\n\n")[0]
    rows = [[re.findall("`([a-z_]+)`", cell) for cell in line.split("|")] for line in table.splitlines()[2:]]

    assert {row[1][0]: set(row[3]) for row in rows} == {
        name: set(settings_of(kind)) for name, kind in PLACEMENTS.items()
    }


def table_of_placements() -> dict[str, list[str]]:
    """By placement the cells of its row in the documents."""
    manual = (Path(__file__).parents[2] / "docs" / "manager.md").read_text()
    table = manual.partition("| placement | a job's nodes |")[2].partition("\n\n")[0]
    rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:])
    return {row[1].strip("`"): row for row in rows}


PLACES = table_of_placements()


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("config", "column"), [(ManagerConfig, 4), (SlurmConfig, 5)])
def test_placements_are_taken_and_refused_as_the_documents_say(
    config: type[ManagerConfig] | type[SlurmConfig], column: int, placement: str
) -> None:
    why = ""
    try:
        rules_of(config(placement=placement))
    except ConfigError as error:
        why = str(error)

    assert bool(why) == PLACES[placement][column].startswith("refused")
    assert not why or (why.startswith("placement: ") and "\n" not in why)


def test_the_limit_of_skew_can_not_be_set_over_slurm() -> None:
    """Slurm's jobs tell neither their models nor their iterations, and nobody there would go by the limit."""
    with pytest.raises(ConfigProblems, match="placement_settings"):
        load_config(SlurmConfig, (), {"partitions": "gpu", "placement_settings": "relearn_jobs=100"})


def test_yarn_cs_without_its_placement_is_refused() -> None:
    with pytest.raises(ConfigError, match="whose placement is yarn, not consolidate"):
        rules_of(ManagerConfig(policy="yarn-cs"))


@pytest.mark.parametrize("config", [ManagerConfig, SlurmConfig])
def test_gittins_that_would_never_have_a_distribution_is_refused(
    config: type[ManagerConfig] | type[SlurmConfig],
) -> None:
    with pytest.raises(ConfigError, match="gittins has no distribution of past jobs"):
        rules_of(config(policy="gittins", policy_settings="is_learning=false"))


def test_slices_over_slurm_are_refused_where_nothing_may_be_preempted() -> None:
    with pytest.raises(ConfigError, match="timeshare takes turns by preemption, and preempt is off"):
        rules_of(SlurmConfig(policy="timeshare"))


def table_of_policies() -> dict[str, list[str]]:
    """By policy the cells of its row in the documents."""
    manual = (Path(__file__).parents[2] / "docs" / "manager.md").read_text()
    table = manual.partition("| policy | what it must know about jobs |")[2].partition("\n\n")[0]
    rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:])
    return {policy: row for row in rows for policy in re.findall("`([a-z-]+)`", row[1])}


POLICIES = table_of_policies()


def settings_in(cell: str) -> dict[str, Any]:
    """The settings with which a cell says that a policy is whole; none: with the defaults."""
    return tomllib.loads("\n".join(re.findall("`([a-z_]+ = [^`]+)`", cell)))


def is_taken(config: ManagerConfig | SlurmConfig) -> bool:
    why = ""
    try:
        rules_of(config)
    except ConfigError as error:
        why = str(error)
    assert not why or (why.startswith("policy: ") and "\n" not in why)
    return not why


def test_the_table_in_the_documents_has_every_policy() -> None:
    assert POLICIES.keys() == ORDERS.keys()


@pytest.mark.parametrize("policy", ORDERS)
def test_the_manager_takes_and_refuses_what_the_documents_say(policy: str) -> None:
    cell = POLICIES[policy][4]
    is_refused = cell.startswith("refused")

    assert is_taken(ManagerConfig(policy=policy)) == ("refused" not in cell)
    assert is_taken(ManagerConfig(policy=policy, **settings_in(cell))) == (not is_refused)


@pytest.mark.parametrize("policy", ORDERS)
def test_farside_slurm_takes_refuses_and_says_what_it_leaves_out_as_the_documents_say(policy: str) -> None:
    cell = POLICIES[policy][5]
    default, whole = SlurmConfig(policy=policy), SlurmConfig(policy=policy, **settings_in(cell))

    assert is_taken(default) == ("refused" not in cell)
    if cell.startswith("refused"):
        assert not is_taken(SlurmConfig(policy=policy, preempt=True, gate=True))
        return
    assert left_out_over_slurm(whole, rules_of(whole).order) == ()
    if is_taken(default):
        assert bool(left_out_over_slurm(default, rules_of(default).order)) == ("in part" in cell)
