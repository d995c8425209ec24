"""What the log keeps of a node's power, and how a manager goes on from it in the middle of a switch."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.manager.model.power_record import NodePowerRecord, is_news, note_of, power_of
from farside.scheduler.manager.model.sleep_time import SleepRecord, saved_kwh
from farside.scheduler.power.state import (
    Answer,
    Beat,
    Command,
    Holdings,
    NodePower,
    Order,
    Patience,
    Phase,
    Power,
    Seen,
    Tick,
)
from farside.scheduler.power.state_machine import step

PATIENCE = Patience(poll_s=10.0, silent_s=15.0, soft_off_s=240.0)
STOPPING = NodePower(
    name="n", phase=Phase.DRAINING, since_s=100.0, last_beat_s=160.0, holdings=Holdings(closed_by=3), drain_number=3,
    is_stopping=True, past_boots=("b1",), stop_s=160.0, stops_s=(160.0,), number=4, ordered_s=160.0,
    pending=Order(node="n", number=4, command=Command.SOFT_OFF, reason="idle"), reason="idle",
)  # fmt: skip

times = st.floats(0, 1e9)
maybe = st.one_of(st.none(), times)
nodes = st.builds(
    NodePower, name=st.just("n"), phase=st.sampled_from(Phase), since_s=times, reason=st.text(max_size=9),
    past_boots=st.lists(st.text(max_size=3), max_size=3).map(tuple), drain_number=st.integers(0, 9),
    is_stopping=st.booleans(), is_wanted=st.booleans(), is_refused=st.booleans(), is_pinned=st.booleans(),
    stop_s=maybe, forced_s=maybe, stay_until_s=maybe,
    stops_s=st.lists(times, max_size=3).map(tuple), tries=st.integers(0, 3), number=st.integers(0, 99),
)  # fmt: skip


@given(nodes)
def test_a_note_survives_its_json_and_says_all_that_matters(node: NodePower) -> None:
    note = msgspec.json.decode(msgspec.json.encode(note_of(node)), type=NodePowerRecord)

    again = power_of("n", note, 5.0)

    assert note == note_of(node)
    assert note_of(again) == note


def told(node: NodePower, *events: object) -> tuple[NodePower, list[Command]]:
    given: list[Command] = []
    for event in events:
        node, orders = step(node, event, PATIENCE)  # type: ignore[arg-type]
        given += [order.command for order in orders]
    return node, given


def after_restart(now_s: float) -> NodePower:
    return power_of("n", note_of(STOPPING), now_s)


def answer(node: NodePower, now_s: float, power: Power) -> Answer:
    assert node.pending is not None
    return Answer(node="n", now_s=now_s, number=node.pending.number, power=power)


def test_a_node_that_went_off_while_the_manager_was_away_is_off_and_not_told_again() -> None:
    node, given = told(after_restart(200.0), Seen(node="n", now_s=200.0, holdings=Holdings(closed_by=3)),
                       Tick(node="n", now_s=200.0))  # fmt: skip
    assert given == [Command.ASK]

    node, _ = told(node, answer(node, 201.0, Power.OFF))
    node, again = told(node, Tick(node="n", now_s=216.0))
    node, _ = told(node, answer(node, 216.0, Power.OFF))

    assert node.phase is Phase.OFF
    assert again == [Command.ASK]


@pytest.mark.parametrize(("beats", "then"), [(True, Command.SOFT_OFF), (False, Command.ASK)])
def test_a_shutdown_that_may_not_have_reached_a_node_is_repeated_only_if_it_beats_on(
    beats: bool, then: Command
) -> None:
    node, _ = told(after_restart(200.0), Seen(node="n", now_s=200.0, holdings=Holdings(closed_by=3)))
    if beats:
        node, _ = told(node, Beat(node="n", now_s=210.0, boot_id="b1"))
    node, _ = told(node, Tick(node="n", now_s=216.0))
    node, _ = told(node, answer(node, 216.0, Power.ON))

    node, given = told(node, Tick(node="n", now_s=227.0))

    assert given == [then]
    assert len(node.stops_s) == 1


@pytest.mark.parametrize(("power", "then"), [(Power.OFF, [Command.POWER_ON]), (Power.ON, [])])
def test_a_boot_that_was_ordered_before_the_restart_is_asked_about_and_ordered_again_only_where_it_is_off(
    power: Power, then: list[Command]
) -> None:
    booting = NodePower(name="n", phase=Phase.BOOTING, since_s=100.0, tries=1, number=4, past_boots=("b1",))
    note = replace(note_of(booting), command=Command.POWER_ON.value)

    node, given = told(power_of("n", note, 200.0), Tick(node="n", now_s=200.0))
    node, more = told(node, answer(node, 200.0, power))

    assert given == [Command.ASK]
    assert more == then
    assert node.phase is Phase.BOOTING


def test_questions_beats_and_what_stands_on_a_node_are_no_news() -> None:
    note = note_of(STOPPING)
    asked = replace(
        STOPPING, last_beat_s=170.0, holdings=None, number=9, ordered_s=170.0,
        pending=Order(node="n", number=9, command=Command.ASK, reason="is it off?"),
    )  # fmt: skip

    assert not is_news(note_of(replace(STOPPING, pending=None)), note_of(asked))
    assert is_news(note, note_of(asked))  # the shutdown was answered
    assert not is_news(None, note_of(NodePower(name="n", reason="adopted")))
    assert is_news(None, note)


def test_sleep_is_added_up_between_any_two_times_also_when_the_past_is_forgotten() -> None:
    record = SleepRecord()
    record.note(100.0, 1)
    record.note(200.0, 3)
    record.note(300.0, 0)

    assert record.node_s(0.0, 1000.0) == 100.0 + 300.0
    assert record.node_s(150.0, 250.0) == 50.0 + 150.0
    record.forget(250.0)
    assert record.node_s(250.0, 1000.0) == 150.0
    assert saved_kwh(3600.0, 800.0) == pytest.approx(0.8)
