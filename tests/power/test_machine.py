"""One node's state machine, event by event."""

from dataclasses import replace
from typing import Any

import pytest

from farside.scheduler.power.state import (
    Answer,
    Beat,
    Command,
    Event,
    Holdings,
    NodePower,
    Order,
    Pardon,
    Patience,
    Phase,
    Power,
    Seen,
    Tick,
    Wanted,
)
from farside.scheduler.power.state_machine import adopt, step

PATIENCE = Patience()


class Story:
    """A node, told event by event; ``orders`` are those of the last event."""

    def __init__(self, patience: Patience = PATIENCE) -> None:
        self.patience = patience
        self.now_s = 1000.0
        self.node: NodePower = adopt("n1", self.now_s)
        self.orders: tuple[Order, ...] = ()

    def is_in(self, phase: Phase) -> bool:
        return self.node.phase is phase

    def tell(self, event: Event) -> tuple[Command, ...]:
        self.node, self.orders = step(self.node, event, self.patience)
        return tuple(order.command for order in self.orders)

    def wanted(self, *, on: bool) -> tuple[Command, ...]:
        return self.tell(Wanted(node="n1", now_s=self.now_s, is_on=on, reason="forecast"))

    def seen(self, **held: Any) -> tuple[Command, ...]:
        return self.tell(Seen(node="n1", now_s=self.now_s, holdings=Holdings(**held)))

    def beat(self, boot: str) -> tuple[Command, ...]:
        return self.tell(Beat(node="n1", now_s=self.now_s, boot_id=boot))

    def answer(self, *, error: str = "", power: Power = Power.UNKNOWN, number: int = 0) -> tuple[Command, ...]:
        last = number or self.node.number
        return self.tell(Answer(node="n1", now_s=self.now_s, number=last, error=error, power=power))

    def after(self, seconds: float) -> tuple[Command, ...]:
        self.now_s += seconds
        return self.tell(Tick(node="n1", now_s=self.now_s))

    def stopping(self) -> "Story":
        self.beat("a")
        self.seen()
        self.wanted(on=False)
        self.answer()
        assert self.seen(closed_by=self.node.drain_number) == (Command.SOFT_OFF,)
        self.answer()
        return self

    def off(self) -> "Story":
        self.stopping()
        assert self.after(PATIENCE.silent_s) == (Command.ASK,)
        self.answer(power=Power.OFF)
        assert self.is_in(Phase.OFF)
        return self

    def booting(self) -> "Story":
        self.off()
        assert self.wanted(on=True) == (Command.POWER_ON,)
        return self


def test_a_node_goes_off_once_it_is_closed_and_empty_and_silent() -> None:
    story = Story()
    story.beat("a")

    assert story.wanted(on=False) == (Command.DRAIN,)
    story.answer()
    assert story.seen(closed_by=story.node.drain_number, jobs=1) == ()
    assert story.seen(closed_by=story.node.drain_number) == (Command.SOFT_OFF,)
    story.answer()
    assert story.after(PATIENCE.silent_s) == (Command.ASK,)
    story.answer(power=Power.OFF)

    assert story.is_in(Phase.OFF)


@pytest.mark.parametrize("held", [{"jobs": 1}, {"foreign_slabs": 1}, {"reservations": 1}, {"is_donor_open": True}])
def test_nothing_that_stands_on_a_node_is_switched_off_with_it(held: dict[str, int]) -> None:
    story = Story()
    story.beat("a")
    story.wanted(on=False)
    story.answer()

    assert story.seen(closed_by=story.node.drain_number, **held) == ()
    assert story.is_in(Phase.DRAINING)


def test_an_empty_node_that_is_still_open_is_not_told_to_stop() -> None:
    story = Story()
    story.beat("a")
    story.wanted(on=False)

    assert story.seen() == ()


def test_a_node_that_an_older_drain_closed_is_not_told_to_stop() -> None:
    story = Story()
    story.beat("a")
    story.wanted(on=False)
    old = story.node.drain_number
    story.wanted(on=True)
    story.answer()
    story.wanted(on=False)

    assert story.seen(closed_by=old) == ()


def test_a_draining_node_that_is_wanted_again_is_opened_at_once() -> None:
    story = Story()
    story.beat("a")
    story.wanted(on=False)

    assert story.wanted(on=True) == (Command.OPEN,)
    assert story.is_in(Phase.ON)


def test_a_node_that_cannot_be_emptied_stays_on_and_is_left_alone() -> None:
    story = Story(replace(PATIENCE, lost_s=1e9))
    story.beat("a")
    story.wanted(on=False)
    story.seen(closed_by=story.node.drain_number, foreign_slabs=2)

    assert story.after(PATIENCE.drain_s) == (Command.OPEN,)
    assert story.is_in(Phase.ON)
    assert "2 foreign slabs" in story.node.reason
    assert story.node.stay_until_s is not None
    assert story.node.stay_until_s > story.now_s


def test_a_bmc_that_says_off_while_the_node_beats_is_not_believed() -> None:
    story = Story().stopping()
    story.now_s += PATIENCE.poll_s
    story.beat("a")
    assert story.after(0.0) == (Command.ASK,)

    story.answer(power=Power.OFF)

    assert story.is_in(Phase.DRAINING)


def test_power_is_cut_when_the_system_does_not_shut_down() -> None:
    story = Story().stopping()

    assert story.after(PATIENCE.soft_off_s) == (Command.FORCE_OFF,)


def test_power_is_not_cut_where_that_is_forbidden() -> None:
    story = Story(replace(PATIENCE, may_force=False)).stopping()

    assert story.after(PATIENCE.soft_off_s) == ()
    assert story.is_in(Phase.FAILED)


def test_a_node_that_does_not_go_off_has_failed_and_is_pinned() -> None:
    story = Story().stopping()
    story.after(PATIENCE.soft_off_s)
    story.answer()

    story.after(PATIENCE.force_off_s)

    assert story.is_in(Phase.FAILED)
    assert story.node.is_pinned


def test_a_boot_that_was_told_to_stop_never_serves_again() -> None:
    story = Story().stopping()
    story.after(PATIENCE.soft_off_s)
    story.answer()
    story.after(PATIENCE.force_off_s)

    assert story.beat("a") == ()
    assert story.is_in(Phase.FAILED)
    assert story.beat("b") == (Command.OPEN,)
    assert story.is_in(Phase.ON)


def test_a_refused_order_to_shut_down_is_given_again() -> None:
    story = Story()
    story.beat("a")
    story.wanted(on=False)
    story.seen(closed_by=story.node.drain_number)

    story.answer(error="busy")

    assert story.after(PATIENCE.poll_s) == (Command.SOFT_OFF,)


def test_an_order_without_an_answer_counts_as_failed() -> None:
    story = Story().booting()
    assert story.after(PATIENCE.answer_s - 1) == ()

    assert story.after(1.0) == (Command.ASK,)


def test_an_answer_to_an_older_order_is_dropped() -> None:
    story = Story().stopping()
    story.after(PATIENCE.silent_s)

    story.answer(power=Power.OFF, number=story.node.number - 1)

    assert story.is_in(Phase.DRAINING)


def test_a_node_is_on_when_it_beats_and_not_when_its_bmc_says_so() -> None:
    story = Story().booting()
    story.answer()
    story.after(PATIENCE.poll_s)
    story.answer(power=Power.ON)
    assert story.is_in(Phase.BOOTING)

    assert story.beat("b") == (Command.OPEN,)
    assert story.is_in(Phase.ON)


def test_a_late_beat_of_the_last_boot_does_not_end_a_boot() -> None:
    story = Story().booting()

    assert story.beat("a") == ()
    assert story.is_in(Phase.BOOTING)


def test_a_node_that_stays_off_gets_the_order_again_and_then_has_failed() -> None:
    story = Story().booting()
    story.answer()
    for _ in range(PATIENCE.tries - 1):
        assert story.after(PATIENCE.poll_s) == (Command.ASK,)
        assert story.answer(power=Power.OFF) == (Command.POWER_ON,)
        story.answer()

    story.after(PATIENCE.poll_s)
    story.answer(power=Power.OFF)

    assert story.is_in(Phase.FAILED)


def test_a_node_that_does_not_boot_in_time_has_failed() -> None:
    story = Story().booting()
    story.answer()

    story.after(PATIENCE.boot_s)

    assert story.is_in(Phase.FAILED)
    assert "booted" in story.node.reason


def test_a_node_wanted_while_it_goes_off_is_booted_when_it_is_off() -> None:
    story = Story().stopping()
    assert story.wanted(on=True) == ()
    story.after(PATIENCE.silent_s)

    assert story.answer(power=Power.OFF) == (Command.POWER_ON,)
    assert story.is_in(Phase.BOOTING)


def test_a_node_that_beats_on_although_its_bmc_calls_it_off_has_failed() -> None:
    story = Story().off()
    story.now_s += PATIENCE.lost_s

    story.beat("a")

    assert story.is_in(Phase.FAILED)


def test_a_node_that_somebody_switched_on_serves() -> None:
    story = Story().off()

    assert story.beat("b") == (Command.OPEN,)
    assert story.is_in(Phase.ON)


def test_a_silent_node_is_off_if_its_bmc_says_so_and_else_has_failed() -> None:
    for said, phase in ((Power.OFF, Phase.OFF), (Power.ON, Phase.FAILED)):
        story = Story()
        story.beat("a")
        assert story.after(PATIENCE.lost_s) == (Command.ASK,)

        story.answer(power=said)

        assert story.is_in(phase)


def test_a_node_that_was_found_closed_while_it_serves_is_opened() -> None:
    story = Story()
    story.beat("a")

    assert story.seen(closed_by=3) == (Command.OPEN,)


def test_a_pinned_node_is_left_on_until_it_is_pardoned() -> None:
    story = Story().stopping()
    story.beat("b")
    assert story.is_in(Phase.ON)
    story.answer()
    assert story.wanted(on=False) == ()

    story.tell(Pardon(node="n1", now_s=story.now_s))

    assert story.wanted(on=False) == (Command.DRAIN,)


def test_a_pardoned_node_that_failed_is_booted() -> None:
    story = Story().booting()
    story.after(PATIENCE.boot_s)

    assert story.tell(Pardon(node="n1", now_s=story.now_s)) == (Command.POWER_ON,)


def test_a_node_that_boots_while_an_order_to_stop_is_on_its_way_does_not_serve_yet() -> None:
    story = Story()
    story.beat("a")
    story.wanted(on=False)
    story.seen(closed_by=story.node.drain_number)

    assert story.beat("b") == ()
    story.answer(error="timed out")
    assert story.beat("b") == (Command.OPEN,)
