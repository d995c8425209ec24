"""Which nodes are switched: floor, rates, preferences."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from farside.scheduler.power.fleet import FleetRules, Plan, may_not_sleep, plan
from farside.scheduler.power.state import Holdings, NodePower, Patience, Phase

NOW_S = 100_000.0
RULES = FleetRules(floor=2, draining_at_once=100, booting_at_once=100, stops_per_hour=100)


def idle(name: str, **changes: object) -> NodePower:
    node = NodePower(name=name, boot_id="a", last_beat_s=NOW_S, holdings=Holdings(), empty_since_s=NOW_S - 3600)
    return replace(node, **changes)  # type: ignore[arg-type]


def fleet(count: int) -> list[NodePower]:
    return [idle(f"n{at}") for at in range(count)]


def asleep(count: int) -> list[NodePower]:
    return [idle(f"s{at}", phase=Phase.OFF, since_s=float(at)) for at in range(count)]


def planned(nodes: list[NodePower], wanted: int, rules: FleetRules = RULES) -> Plan:
    return plan(nodes, wanted, now_s=NOW_S, rules=rules, reason="forecast")


def names(found: Plan, *, on: bool) -> list[str]:
    return [wish.node for wish in found.wishes if wish.is_on is on]


def test_as_many_go_off_as_are_not_wanted() -> None:
    assert len(names(planned(fleet(10), 7), on=False)) == 3


def test_the_floor_stays_on_whatever_is_wanted() -> None:
    assert len(names(planned(fleet(10), 0), on=False)) == 8


def test_nodes_on_their_way_off_do_not_count_for_the_floor() -> None:
    nodes = [*fleet(2), idle("d", phase=Phase.DRAINING)]

    assert planned(nodes, 0).wishes == ()


def test_nodes_below_the_floor_are_woken_even_right_after_they_went_off() -> None:
    rules = replace(RULES, min_off_s=3600.0)
    nodes = [*fleet(1), idle("s", phase=Phase.OFF, since_s=NOW_S - 1)]

    assert names(planned(nodes, 0, rules), on=True) == ["s"]


def test_a_node_that_went_off_rests_when_only_demand_wants_it() -> None:
    rules = replace(RULES, min_off_s=3600.0)
    nodes = [*fleet(2), idle("s", phase=Phase.OFF, since_s=NOW_S - 1)]

    assert planned(nodes, 3, rules) == Plan(wishes=(), short=1)


def test_draining_nodes_are_called_back_before_any_is_booted() -> None:
    nodes = [*fleet(2), *asleep(3), idle("d", phase=Phase.DRAINING)]

    assert names(planned(nodes, 3), on=True) == ["d"]


def test_who_has_been_off_longest_is_woken_first() -> None:
    assert names(planned([*fleet(2), *asleep(3)], 4), on=True) == ["s0", "s1"]


def test_no_more_boot_at_once_than_the_fuses_bear() -> None:
    rules = replace(RULES, booting_at_once=2)
    nodes = [*fleet(2), *asleep(5), idle("b", phase=Phase.BOOTING)]

    found = planned(nodes, 7, rules)

    assert len(names(found, on=True)) == 1
    assert found.short == 3


def test_nodes_with_others_memory_are_the_last_to_go() -> None:
    nodes = [idle("slabs", holdings=Holdings(foreign_slabs=2)), *fleet(2)]

    assert names(planned(nodes, 2), on=False) == ["n0"]
    assert names(planned(nodes, 2, replace(RULES, always_on=frozenset({"n0", "n1"}))), on=False) == ["slabs"]


def test_the_rate_limits_how_many_go_off_in_an_hour() -> None:
    rules = replace(RULES, stops_per_hour=3)
    nodes = [*fleet(8), idle("s", phase=Phase.OFF, stops_s=(NOW_S - 60, NOW_S - 7200))]

    found = planned(nodes, 2, rules)

    assert len(names(found, on=False)) == 2
    assert Counter(found.stays.values()) == {"the rate at which nodes may go off": 4}


def test_reasons_to_stay_on_are_told() -> None:
    cases = {
        "has a job": idle("n", holdings=Holdings(jobs=1)),
        "is reserved": idle("n", holdings=Holdings(reservations=1)),
        "lends memory that other donors have no room for": idle(
            "n", holdings=Holdings(foreign_slabs=1, is_movable=False)
        ),
        "nobody knows what stands on it": idle("n", holdings=None),
        "did not go off the last time": idle("n", is_pinned=True),
        "has just come up": idle("n", since_s=NOW_S - 1),
        "could not be emptied": idle("n", stay_until_s=NOW_S + 1),
        "went off often enough today": idle("n", stops_s=(NOW_S - 7200,) * 6),
        "": idle("n"),
    }

    assert {may_not_sleep(node, now_s=NOW_S, rules=RULES) for node in cases.values()} == set(cases)
    assert [may_not_sleep(node, now_s=NOW_S, rules=RULES) for node in cases.values()] == list(cases)


def test_a_failed_node_is_replaced_by_one_that_sleeps() -> None:
    nodes = [*fleet(2), idle("f", phase=Phase.FAILED), *asleep(1)]

    assert names(planned(nodes, 3), on=True) == ["s0"]


@pytest.mark.parametrize("wrong", [{"floor": -1}, {"booting_at_once": 0}, {"draining_at_once": 0}, {"min_on_s": -1.0}])
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        FleetRules(**wrong)


@pytest.mark.parametrize("wrong", [{"poll_s": 0.0}, {"silent_s": 120.0}, {"tries": 0}, {"backoff_s": -1.0}])
def test_patience_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Patience(**wrong)


def test_nodes_that_jobs_call_are_woken_first_and_though_enough_others_are_on() -> None:
    nodes = [*fleet(4), *asleep(3)]

    found = plan(nodes, 4, now_s=NOW_S, rules=RULES, reason="jobs", called=frozenset({"s2"}))

    assert [(wish.node, wish.is_on, wish.reason) for wish in found.wishes] == [("s2", True, "a job waits for it")]


def test_an_idle_node_that_a_job_is_about_to_fill_stays_on() -> None:
    found = plan(fleet(3), 0, now_s=NOW_S, rules=replace(RULES, floor=0), reason="x", called=frozenset({"n1"}))

    assert sorted(names(found, on=False)) == ["n0", "n2"]
    assert Counter(found.stays.values()) == {"a job waits for it": 1}


def test_of_nodes_that_lend_one_is_emptied_at_a_time() -> None:
    nodes = [idle(name, holdings=Holdings(foreign_slabs=2)) for name in "abc"]
    first = plan(nodes, 0, now_s=NOW_S, rules=FleetRules(floor=0), reason="idle")
    draining = replace(nodes[0], phase=Phase.DRAINING)
    then = plan([draining, *nodes[1:]], 0, now_s=NOW_S, rules=FleetRules(floor=0), reason="idle")

    assert [wish.node for wish in first.wishes] == ["a"]
    assert set(first.stays) == {"b", "c"}
    assert then.wishes == ()
    assert set(then.stays.values()) == {"others' memory moves off one node at a time"}
