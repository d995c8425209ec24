"""A cluster with BMCs that answer late, never, or falsely: nothing that stands on a node is switched off with it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farside.scheduler.power.fleet import FleetRules, may_not_sleep, plan
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

NAMES = ("n0", "n1")
PATIENCE = Patience(drain_s=300.0, backoff_s=60.0, soft_off_s=60.0, force_off_s=40.0, boot_s=120.0, lost_s=60.0)
RULES = FleetRules(floor=1, min_on_s=20.0, stops_per_hour=1000, stops_per_node_per_day=1000)
BMC = (Command.SOFT_OFF, Command.FORCE_OFF, Command.POWER_ON, Command.ASK)


@dataclass
class Machine:
    """A real node, and what its owners know of it."""

    is_up: bool = True
    boots: int = 1
    closed_by: int = 0
    highest: int = 0  # order number that its owners have seen
    is_shutting_down: bool = False
    jobs: int = 0
    slabs: int = 0
    reservations: int = 0

    @property
    def boot_id(self) -> str:
        return f"boot{self.boots}"

    def holdings(self) -> Holdings:
        return Holdings(
            closed_by=self.closed_by, jobs=self.jobs, foreign_slabs=self.slabs, reservations=self.reservations
        )

    def boot(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.boots += 1

    def lose_all(self) -> None:
        self.is_up = self.is_shutting_down = False
        self.jobs = self.slabs = self.reservations = 0


@dataclass
class Flying:
    """Something on its way, with the time at which it left."""

    what: Order | Answer | Beat | Seen
    sent_s: float = field(default=0.0)


nodes = st.sampled_from(NAMES)


class PowerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.world = {name: Machine() for name in NAMES}
        self.known: dict[str, NodePower] = {name: adopt(name, self.now_s) for name in NAMES}
        self.orders: list[Flying] = []
        self.answers: list[Flying] = []
        self.talk: list[Flying] = []
        self.killed: list[str] = []
        for name in NAMES:
            self.a_good_day(name)
        self.time_passes(31.0)

    # ------------------------------------------------------------------ the manager

    def tell(self, event: Event) -> None:
        node, orders = step(self.known[event.node], event, PATIENCE)
        self.known[event.node] = node
        self.orders += [Flying(order, self.now_s) for order in orders]

    @rule(wanted=st.integers(0, 4))
    def plan_for(self, wanted: int) -> None:
        before = self.serving()
        found = plan(tuple(self.known.values()), wanted, now_s=self.now_s, rules=RULES, reason="forecast")
        for wish in found.wishes:
            self.tell(wish)
        assert self.serving() >= min(before, max(RULES.floor, wanted))

    def phase(self, name: str) -> Phase:
        return self.known[name].phase

    def serving(self) -> int:
        return sum(node.phase is Phase.ON for node in self.known.values())

    @rule(name=nodes, is_on=st.booleans())
    def somebody_wants(self, name: str, is_on: bool) -> None:
        may = not may_not_sleep(self.known[name], now_s=self.now_s, rules=RULES)
        if is_on or may:
            self.tell(Wanted(node=name, now_s=self.now_s, is_on=is_on, reason="operator"))

    @rule(name=nodes)
    def a_node_is_sent_off(self, name: str) -> None:
        """As far as the order to shut down: what becomes of that is up to the other rules."""
        self.a_good_day(name)
        self.somebody_wants(name, is_on=False)
        self.a_good_day(name)

    @rule(seconds=st.sampled_from((1.0, 16.0, 31.0, 61.0, 121.0)))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        # A driver gives an order up before the manager does: none acts later than that.
        self.orders = [one for one in self.orders if self.now_s - one.sent_s < PATIENCE.answer_s]
        for name in NAMES:
            self.tell(Tick(node=name, now_s=self.now_s))

    @rule(name=nodes)
    def an_operator_pardons(self, name: str) -> None:
        # An operator mends a node before pardoning it: an old boot is not left running.
        if self.known[name].phase is Phase.FAILED and not self.world[name].is_up:
            self.tell(Pardon(node=name, now_s=self.now_s))

    # ------------------------------------------------------------------ orders, late, lost, refused or ignored

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), fate=st.sampled_from(("done", "refused", "lost", "ignored", "slow")))
    def an_order_arrives(self, data: st.DataObject, fate: str) -> None:
        order = self.orders.pop(data.draw(st.integers(0, len(self.orders) - 1))).what
        assert isinstance(order, Order)
        machine, power = self.world[order.node], Power.UNKNOWN
        if fate == "slow" and order.command is Command.SOFT_OFF:
            machine.is_shutting_down = machine.is_up
        elif fate in ("done", "lost", "slow"):
            power = self.carry_out(order, machine)
        elif fate == "ignored" and order.command is Command.ASK:
            power = data.draw(st.sampled_from((Power.ON, Power.OFF)))  # a lie
        if fate == "lost":
            return
        error = "refused" if fate == "refused" else ""
        answer = Answer(node=order.node, now_s=self.now_s, number=order.number, error=error, power=power)
        self.answers.append(Flying(answer))

    def carry_out(self, order: Order, machine: Machine) -> Power:
        if order.command in (Command.DRAIN, Command.OPEN):
            if order.number > machine.highest:
                machine.highest = order.number
                machine.closed_by = order.number if order.command is Command.DRAIN else 0
        elif order.command is Command.POWER_ON:
            machine.boot()
        elif order.command in (Command.SOFT_OFF, Command.FORCE_OFF):
            self.go_off(machine)
        return Power.ON if machine.is_up else Power.OFF

    def go_off(self, machine: Machine) -> None:
        if machine.is_up and not machine.holdings().is_empty:
            self.killed.append(str(machine))
        machine.lose_all()

    @precondition(lambda self: any(machine.is_shutting_down for machine in self.world.values()))
    @rule(name=nodes)
    def a_slow_shutdown_ends(self, name: str) -> None:
        if self.world[name].is_shutting_down:
            self.go_off(self.world[name])

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        self.arrive(self.answers, data)

    @rule(name=nodes)
    def a_node_speaks(self, name: str) -> None:
        machine = self.world[name]
        if machine.is_up:
            self.talk.append(Flying(Beat(node=name, now_s=0.0, boot_id=machine.boot_id), self.now_s))

    @rule(name=nodes)
    def a_node_is_looked_at(self, name: str) -> None:
        self.talk.append(Flying(Seen(node=name, now_s=0.0, holdings=self.world[name].holdings()), self.now_s))

    @precondition(lambda self: self.talk)
    @rule(data=st.data())
    def talk_arrives(self, data: st.DataObject) -> None:
        self.arrive(self.talk, data)

    def arrive(self, flying: list[Flying], data: st.DataObject) -> None:
        what = flying.pop(data.draw(st.integers(0, len(flying) - 1))).what
        assert not isinstance(what, Order)
        self.tell(type(what)(**{**{f: getattr(what, f) for f in what.__dataclass_fields__}, "now_s": self.now_s}))

    # ------------------------------------------------------------------ the rest of the world

    @rule(name=nodes, what=st.sampled_from(("jobs", "slabs", "reservations")))
    def something_comes(self, name: str, what: str) -> None:
        machine = self.world[name]
        if machine.is_up and not machine.closed_by:
            setattr(machine, what, getattr(machine, what) + 1)

    @rule(name=nodes, what=st.sampled_from(("jobs", "slabs", "reservations")))
    def something_leaves(self, name: str, what: str) -> None:
        setattr(self.world[name], what, 0)

    @rule(name=nodes)
    def a_node_crashes_and_boots(self, name: str) -> None:
        self.world[name].lose_all()
        self.world[name].boot()

    @rule(name=nodes, is_brief=st.booleans())
    def a_good_day(self, name: str, is_brief: bool = False) -> None:
        """All goes as it should, so that runs get somewhere: an order is carried out, answered, and the node seen."""
        machine, mine = self.world[name], [one for one in self.orders if getattr(one.what, "node", "") == name]
        for flying in mine:
            self.orders.remove(flying)
            order = flying.what
            assert isinstance(order, Order)
            power = self.carry_out(order, machine)
            self.tell(Answer(node=name, now_s=self.now_s, number=order.number, power=power))
            if is_brief:
                return
        if machine.is_up:
            self.tell(Beat(node=name, now_s=self.now_s, boot_id=machine.boot_id))
        self.tell(Seen(node=name, now_s=self.now_s, holdings=machine.holdings()))

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def nothing_was_switched_off_with_its_node(self) -> None:
        assert self.killed == []

    @invariant()
    def a_stopping_boot_is_never_open(self) -> None:
        for name, node in self.known.items():
            if node.is_stopping and self.world[name].is_up and self.world[name].boot_id in node.past_boots:
                assert self.world[name].closed_by


PowerModel.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestPowerModel = pytest.mark.filterwarnings("default")(PowerModel.TestCase)


def test_the_model_would_notice_a_node_that_is_switched_off_with_a_job() -> None:
    model = PowerModel()
    model.world["n0"].jobs = 1

    model.carry_out(Order(node="n0", number=1, command=Command.SOFT_OFF, reason=""), model.world["n0"])

    with pytest.raises(AssertionError):
        model.nothing_was_switched_off_with_its_node()


def test_the_model_sees_nodes_go_off_and_come_back() -> None:
    model = PowerModel()
    for _ in range(3):
        model.a_good_day("n0")
    model.time_passes(31.0)
    model.tell(Wanted(node="n0", now_s=model.now_s, is_on=False, reason="test"))
    for _ in range(6):
        model.a_good_day("n0")
        model.time_passes(16.0)

    assert model.phase("n0") == Phase.OFF
    assert not model.world["n0"].is_up
    model.tell(Wanted(node="n0", now_s=model.now_s, is_on=True, reason="test"))
    model.a_good_day("n0")
    assert model.phase("n0") == Phase.ON
