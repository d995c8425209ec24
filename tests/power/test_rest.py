"""When idle nodes slow down, and when they stop doing so."""

from dataclasses import replace

from farside.scheduler.power.idle_saving import Rest, RestCommand, RestRules, next_rest
from farside.scheduler.power.state import Holdings, NodePower, Phase

RULES = RestRules(after_s=300.0, between_s=600.0)
IDLE = NodePower(name="n", boot_id="a", holdings=Holdings(), empty_since_s=0.0)


def test_a_node_rests_once_it_has_been_idle_long_enough() -> None:
    assert next_rest(Rest(), IDLE, now_s=299.0, rules=RULES)[1] is None

    rest, command = next_rest(Rest(), IDLE, now_s=300.0, rules=RULES)

    assert rest.is_resting
    assert command is RestCommand.REST


def test_anything_that_comes_ends_a_rest() -> None:
    rest, _ = next_rest(Rest(), IDLE, now_s=300.0, rules=RULES)
    for held in (Holdings(jobs=1), Holdings(foreign_slabs=1), Holdings(reservations=1)):
        after, command = next_rest(rest, replace(IDLE, holdings=held), now_s=301.0, rules=RULES)

        assert not after.is_resting
        assert command is RestCommand.RESUME


def test_rests_do_not_follow_each_other_at_once() -> None:
    rest, _ = next_rest(Rest(), IDLE, now_s=300.0, rules=RULES)
    rest, _ = next_rest(rest, replace(IDLE, holdings=Holdings(jobs=1)), now_s=400.0, rules=RULES)

    assert next_rest(rest, IDLE, now_s=999.0, rules=RULES)[1] is None
    assert next_rest(rest, IDLE, now_s=1000.0, rules=RULES)[1] is RestCommand.REST


def test_a_boot_undoes_a_rest_without_an_order() -> None:
    rest, _ = next_rest(Rest(), IDLE, now_s=300.0, rules=RULES)

    after, command = next_rest(rest, replace(IDLE, boot_id="b"), now_s=301.0, rules=RULES)

    assert not after.is_resting
    assert command is None


def test_only_nodes_that_serve_rest() -> None:
    for phase in set(Phase) - {Phase.ON}:
        assert next_rest(Rest(), replace(IDLE, phase=phase), now_s=1e6, rules=RULES)[1] is None
