"""An energy policy, asked by the controller: once an interval, with the most that was needed in it."""

from dataclasses import dataclass, field, replace

from farside.scheduler.energy.policy import Seen, Target
from farside.scheduler.energy.simple_policies import KeepRecent
from farside.scheduler.power.state import Holdings, NodePower, Phase
from farside.scheduler.power.wanted_nodes import Occupancy, PolicyDemand, Wish, occupancy

NOW = Occupancy(now_s=1000.0, busy=2, lacking=0, powered=10, total=10)


@dataclass
class Script:
    """A policy that says what it is told to say."""

    nodes: float = 5.0
    seen: list[Seen] = field(default_factory=list)
    powered: list[float] = field(default_factory=list)

    def watch(self, seen: Seen) -> None:
        self.seen.append(seen)

    def target(self, powered: float) -> Target:
        self.powered.append(powered)
        return Target(nodes=self.nodes, reason="the script")


def at(seconds: float, **changes: int) -> Occupancy:
    return replace(NOW, now_s=NOW.now_s + seconds, **changes)


def test_nobody_sleeps_before_the_first_interval_is_over() -> None:
    assert PolicyDemand(Script(), step_s=600.0).wish(NOW).nodes == 10


def test_a_policy_is_told_the_most_that_an_interval_needed() -> None:
    script = Script()
    demand = PolicyDemand(script, step_s=600.0)
    for now in (at(0), at(300, busy=7, lacking=1), at(500, busy=1)):
        demand.wish(now)

    wish = demand.wish(at(600, busy=1))

    assert script.seen == [Seen(step=0, active=8, total=10)]
    assert script.powered == [10]
    assert wish == Wish(nodes=5, reason="the script")


def test_a_decision_holds_until_the_next_one() -> None:
    script = Script()
    demand = PolicyDemand(script, step_s=600.0)
    demand.wish(at(0))
    demand.wish(at(600))
    script.nodes = 9

    assert demand.wish(at(1199)).nodes == 5
    assert demand.wish(at(1200)).nodes == 9


def test_arrivals_do_not_wait_for_the_next_interval() -> None:
    demand = PolicyDemand(Script(), step_s=600.0)
    demand.wish(at(0))
    demand.wish(at(600))

    assert demand.wish(at(601, busy=5, lacking=3)).nodes == 8
    assert demand.wish(at(602, busy=9, lacking=30)).nodes == 10  # there are no more


def test_missed_turns_count_as_unchanged() -> None:
    script = Script()
    demand = PolicyDemand(script, step_s=600.0)
    demand.wish(at(0))
    demand.wish(at(1900, busy=4))

    assert [(seen.step, seen.active) for seen in script.seen] == [(0, 2), (1, 4), (2, 4)]


def test_nodes_are_counted_as_policies_see_them() -> None:
    nodes = [
        NodePower(name="job", holdings=Holdings(jobs=1)),
        NodePower(name="reserved", holdings=Holdings(reservations=1)),
        NodePower(name="slabs", holdings=Holdings(foreign_slabs=3)),
        NodePower(name="unseen"),
        NodePower(name="boots", phase=Phase.BOOTING),
        NodePower(name="off", phase=Phase.OFF),
        NodePower(name="failed", phase=Phase.FAILED),
        NodePower(name="drains", phase=Phase.DRAINING, holdings=Holdings()),
    ]

    found = occupancy(nodes, 0.0, lacking=2)

    assert (found.busy, found.powered, found.total, found.needed) == (3, 5, 7, 5)


def test_a_policy_with_a_past_decides_at_once_and_one_without_goes_on_from_what_was_wished() -> None:
    learned = KeepRecent(buffer_nodes=1, keep_s=1200.0, step_s=600.0)
    fresh = KeepRecent(buffer_nodes=1, keep_s=1200.0, step_s=600.0)
    now = Occupancy(now_s=5000.0, busy=1, lacking=0, powered=9, total=9)

    with_past = PolicyDemand(learned, step_s=600.0, past=(2.0, 3.0, 1.0))
    going_on = PolicyDemand(fresh, step_s=600.0, first=Wish(nodes=4, reason="as before"))

    assert with_past.wish(now).nodes == 4  # the most of two intervals, and one
    assert going_on.wish(now) == Wish(nodes=4, reason="as before")
