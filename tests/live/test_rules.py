"""What a manager's config says of scheduling is refused where it can't be meant."""

import re
from pathlib import Path

import pytest

from farside.config import ManagerConfig, SlurmConfig
from farside.errors import ConfigError
from farside.scheduler.configured_rules import rules_of
from farside.scheduler.order.catalog import ORDERS


def test_a_reservation_that_would_begin_at_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="reserve_after_s: must be at least 1 s, or 0 for never"):
        rules_of(ManagerConfig(reserve_after_s=1e-9))


def test_no_reservation_is_never() -> None:
    assert rules_of(ManagerConfig(reserve_after_s=0.0)).reserve_after_s == float("inf")


def test_a_placement_that_counts_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not say on which nodes"):
        rules_of(ManagerConfig(placement="count"))


def test_a_policy_that_needs_an_estimator_is_refused_with_what_to_take_instead() -> None:
    with pytest.raises(ConfigError, match="policy: qssf needs an estimator") as refused:
        rules_of(ManagerConfig(policy="qssf"))

    assert refused.value.hint is not None
    assert "take las or gittins" in refused.value.hint


@pytest.mark.parametrize("policy", sorted(ORDERS.keys() - {"qssf"}))
def test_every_other_policy_is_taken(policy: str) -> None:
    assert rules_of(ManagerConfig(policy=policy)).order.name == policy


def test_over_slurm_there_is_an_estimator() -> None:
    assert rules_of(SlurmConfig(policy="qssf")).order.name == "qssf"


def test_the_table_in_the_documents_has_every_policy_and_says_which_the_manager_refuses() -> None:
    manual = Path(__file__).parents[2] / "docs" / "manager.md"
    table = manual.read_text().partition("| policy | what it must know about jobs |")[2].partition("\n\n")[0]
    manager_says = {
        policy: cells[4].strip()
        for cells in (line.split("|") for line in table.splitlines()[2:])
        for policy in re.findall("`([a-z-]+)`", cells[1])
    }

    assert manager_says.keys() == ORDERS.keys()
    assert {policy for policy, says in manager_says.items() if says == "refused"} == {"qssf"}
