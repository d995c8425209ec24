"""Turns on nodes: the queues of two nodes and their synchroniser, with links cut, messages doubled and late."""

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farside.agent.training import node_queue, synchronizer
from farside.agent.training.node_queue import (
    IDLE_MOST_S,
    LAST_FROM_S,
    LEAST_LEASE_S,
    UNKNOWN_LEASE_S,
    Bypassed,
    Deadline,
    Died,
    Done,
    Grant,
    HangUp,
    Hello,
    Idled,
    Measured,
    NodeQueue,
    Overdue,
    Passed,
    PullDue,
    Pushed,
    Served,
    StartOver,
    Want,
    Yield,
)
from farside.agent.training.subtask import Apart, Bound, Progress, Ready, Together, phase_of, position_of, resource_of
from farside.agent.training.synchronizer import Joined, Left, Members, Synchronizer

NODES, JOBS = ("0", "1"), ("a", "b", "c")
WORKERS = [(node, job) for node in NODES for job in JOBS]


class Turns(RuleBasedStateMachine):
    """Workers go through their positions; what is said between nodes and synchroniser is delivered by rules."""

    def __init__(self) -> None:
        super().__init__()
        self.sync = Synchronizer()
        self.queues = {node: NodeQueue() for node in NODES}
        self.to_sync: dict[str, list[Any]] = {node: [] for node in NODES}
        self.to_node: dict[str, list[Any]] = {node: [] for node in NODES}
        self.links: dict[str, bool] = dict.fromkeys(NODES, False)
        # By node and job: the position that a worker is at, and whether it knows of none, asks, or may run.
        self.at = {(node, job): -2 for node in NODES for job in JOBS}
        self.is_known = dict.fromkeys(self.at, False)
        self.asks = dict.fromkeys(self.at, False)
        self.runs = dict.fromkeys(self.at, False)
        self.dues: dict[str, list[PullDue]] = {node: [] for node in NODES}
        self.starts = True
        self.tell_sync(Members(epoch=1, nodes=frozenset(NODES), jobs=dict.fromkeys(JOBS, len(NODES))))
        for node in NODES:
            self.a_link_is_there(node)

    def tell_sync(self, event: Any) -> None:
        self.sync, told = synchronizer.step(self.sync, event)
        for message in told:
            for node in NODES:
                if self.links[node]:
                    self.to_node[node].append(message)

    def tell_node(self, node: str, event: Any) -> None:
        before = self.queues[node]
        self.queues[node], told = node_queue.step(before, event)
        for output in told:
            if isinstance(output, Progress):
                if self.links[node]:
                    self.to_sync[node].append(output)
            elif isinstance(output, Grant):
                key = (node, output.job)
                assert self.asks[key], "nobody asked"
                assert output.position == self.at[key], "a position was granted twice, or went back"
                self.asks[key], self.runs[key] = False, True
            elif isinstance(output, Pushed):
                self.dues[node].append(PullDue(job=output.job, position=output.position))
            else:
                assert isinstance(output, Served | Overdue), output

    def ask(self, node: str, job: str) -> None:
        key = (node, job)
        if not self.is_known[key]:
            self.is_known[key] = True
            self.tell_node(
                node,
                # That it is the only one is not so, which is the worst: a pull may not be ready for long.
                Hello(
                    job=job, worker=int(node), position=self.at[key], is_first=self.starts and self.at[key] == -2,
                    is_only=job == JOBS[0],
                ),
            )  # fmt: skip
        self.asks[key] = True
        self.tell_node(node, Want(job=job, position=self.at[key]))

    def can_end(self, node: str, job: str) -> bool:
        """A pull ends when all have pushed; what else runs needs nobody."""
        position = self.at[node, job]
        return phase_of(position) != "PULL" or all(self.at[other, job] >= position for other in NODES)

    @rule(node=st.sampled_from(NODES), job=st.sampled_from(JOBS))
    def a_worker_asks_or_goes_on(self, node: str, job: str) -> None:
        key = (node, job)
        if self.runs[key]:
            if self.can_end(node, job):
                self.runs[key] = False
                if self.at[key] % 2:  # some say that they are done, others ask for the next at once
                    self.tell_node(node, Done(job=job, position=self.at[key]))
                self.at[key] += 1
                self.ask(node, job)
        elif not self.asks[key]:
            self.ask(node, job)
        else:
            self.tell_node(node, Want(job=job, position=self.at[key]))  # once more

    def holders(self) -> list[tuple[str, str]]:
        """Workers with a permission, or one that has ended."""
        return [
            (node, job)
            for node, queue in self.queues.items()
            for job, one in queue.workers.items()
            if one.place in ("held", "late") and self.runs[node, job]
        ]

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def a_worker_yields(self, data: st.DataObject) -> None:
        node, job = data.draw(st.sampled_from(self.holders()))
        self.runs[node, job], self.asks[node, job] = False, True
        self.tell_node(node, Yield(job=job, position=self.at[node, job]))

    @precondition(lambda self: self.holders())
    @rule(data=st.data(), back=st.integers(0, 2))
    def a_deadline_passes(self, data: st.DataObject, back: int) -> None:
        node, job = data.draw(st.sampled_from(self.holders()))
        one = self.queues[node].workers[job]
        if one.lease is not None:
            self.tell_node(node, Deadline(job=job, lease=one.lease - back))
            assert back == 0 or self.queues[node].workers[job].place == "held"

    @rule(node=st.sampled_from(NODES), job=st.sampled_from(JOBS))
    def a_job_that_begins_has_waited_long_enough(self, node: str, job: str) -> None:
        self.tell_node(node, StartOver(job=job))

    @rule(node=st.sampled_from(NODES))
    def the_network_was_kept_for_a_pull_long_enough(self, node: str) -> None:
        while self.dues[node]:
            self.tell_node(node, self.dues[node].pop(0))

    @rule(node=st.sampled_from(NODES), count=st.integers(1, 9))
    def messages_arrive(self, node: str, count: int) -> None:
        for _ in range(count):
            if self.to_sync[node]:
                self.tell_sync(self.to_sync[node].pop(0))
            if self.to_node[node]:
                self.tell_node(node, self.to_node[node].pop(0))

    @rule(node=st.sampled_from(NODES), data=st.data())
    def a_message_comes_once_more_and_late(self, node: str, data: st.DataObject) -> None:
        for channel in (self.to_sync[node], self.to_node[node]):
            if channel:
                channel.append(data.draw(st.sampled_from(channel)))

    @precondition(lambda self: all(self.links.values()))
    @rule(node=st.sampled_from(NODES))
    def a_link_is_cut_and_what_was_on_it_is_lost(self, node: str) -> None:
        self.links[node] = False
        self.to_sync[node].clear()
        self.to_node[node].clear()
        self.tell_sync(Left(node=node))
        self.tell_node(node, Apart(epoch=self.queues[node].epoch))

    @rule(node=st.sampled_from(NODES))
    def a_link_is_there(self, node: str) -> None:
        if not self.links[node]:
            self.links[node] = True
            self.tell_sync(Joined(node=node))

    @rule(node=st.sampled_from(NODES))
    def an_executor_dies_and_another_takes_its_place(self, node: str) -> None:
        if self.links[node]:
            self.a_link_is_cut_and_what_was_on_it_is_lost(node)
        self.queues[node] = NodeQueue()
        self.dues[node].clear()
        self.starts = False
        for job in JOBS:
            key = (node, job)
            self.is_known[key] = False
            # Who waited goes on without, and comes to the new one with its next subtask.
            self.asks[key], self.runs[key] = False, self.runs[key] or self.asks[key]

    @invariant()
    def one_holds_each_resource(self) -> None:
        for queue in self.queues.values():
            assert len(queue.holders("cpu")) <= 1
            assert len(queue.holders("net")) <= 1

    @invariant()
    def nothing_free_is_kept_from_who_is_ready(self) -> None:
        for node, queue in self.queues.items():
            kept_for = {job: one.done + 1 for job, one in queue.workers.items() if one.pulls_next}
            assert set(kept_for.items()) <= {(due.job, due.position) for due in self.dues[node]}, "kept for ever"
            for one in queue.workers.values():
                if one.place == "door" and one.ready is not None and one.ready[0] == one.position:
                    # Who gave way may be behind a push, which waits for the pull for which the network is kept.
                    is_behind = phase_of(one.position) in ("PUSH", "INIT_PUSH") or bool(one.gave_way_to)
                    is_kept = bool(kept_for) and is_behind
                    assert is_kept or queue.holders(resource_of(one.position))

    @invariant()
    def nobody_waits_for_an_order_that_nobody_keeps(self) -> None:
        for queue in self.queues.values():
            for one in queue.workers.values():
                assert one.place != "door" or (one.waits and not queue.is_apart)

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def a_worker_dies_and_begins_its_subtask_again(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.holders()))
        self.is_known[key] = self.asks[key] = self.runs[key] = False
        self.tell_node(key[0], Died(job=key[1]))
        # As the executor with the synchroniser does (`agent/training/group.py`): what is ready is said once an epoch.
        self.the_group_is_named_anew()

    @rule()
    def the_group_is_named_anew(self) -> None:
        self.tell_sync(Members(epoch=self.sync.epoch + 1, nodes=frozenset(NODES), jobs=dict.fromkeys(JOBS, len(NODES))))

    @rule(rounds=st.integers(1, 8), quick=st.sets(st.sampled_from(WORKERS)))
    def all_go_on(self, rounds: int, quick: Set[tuple[str, str]]) -> None:
        """Those who are not quick keep what they have."""
        for _ in range(rounds):
            for node in NODES:
                self.messages_arrive(node, 9)
                for job in JOBS:
                    if (self.runs[node, job] and (node, job) in quick) or not (
                        self.runs[node, job] or self.asks[node, job]
                    ):
                        self.a_worker_asks_or_goes_on(node, job)
                    self.one_holds_each_resource()
                    self.nothing_free_is_kept_from_who_is_ready()

    def teardown(self) -> None:
        """Whatever has happened: once the links stay, all jobs go on, and keep the order again."""
        goal = {job: max(self.at[node, job] for node in NODES) + 7 for job in JOBS}
        for _ in range(400):
            for node in NODES:
                self.a_link_is_there(node)
                self.the_network_was_kept_for_a_pull_long_enough(node)
            self.all_go_on(1, frozenset(WORKERS))
            if all(self.at[node, job] >= goal[job] for node in NODES for job in JOBS):
                break
        else:
            raise AssertionError(f"stuck: {self.queues} {self.sync}")
        assert all(one.is_bound for queue in self.queues.values() for one in queue.workers.values())


Turns.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurns = Turns.TestCase


def after(*events: Any, queue: NodeQueue | None = None) -> tuple[NodeQueue, list[Any]]:
    """A queue in epoch 1 after events, and what came of the last one."""
    state, told = queue or node_queue.step(NodeQueue(), Together(epoch=1))[0], list[Any]()
    for event in events:
        state, found = node_queue.step(state, event)
        told = list(found)
    return state, told


def started(job: str, number: int, *, position: int = 0) -> list[Any]:
    """A worker that comes, is bound, and asks for a position that is ready."""
    return [
        Hello(job=job, worker=0, position=position, is_first=True),
        Bound(epoch=1, job=job),
        Ready(epoch=1, job=job, position=position, number=number),
        Want(job=job, position=position),
    ]


def test_positions_say_phase_and_resource() -> None:
    assert [phase_of(position) for position in range(-2, 4)] == [
        "INIT_COMP", "INIT_PUSH", "PULL", "COMP", "PUSH", "PULL",
    ]  # fmt: skip
    assert [resource_of(position) for position in range(-2, 3)] == ["cpu", "net", "net", "cpu", "net"]
    assert position_of(7, "COMP") == 22


def test_what_was_ready_first_goes_first() -> None:
    events = [*started("a", 3), *started("c", 2), *started("b", 1)]
    state, told = after(*events)
    assert told == [Progress(epoch=1, job="b", worker=0, position=-1)]

    state, told = after(Done(job="a", position=0), queue=state)

    assert [one.job for one in told if isinstance(one, Grant)] == ["b"]
    assert Served(job="a", position=0) in told


def test_computing_and_communicating_go_side_by_side() -> None:
    state, _ = after(*started("a", 1, position=1), *started("b", 2, position=0))

    assert state.holders("cpu") == ["a"]
    assert state.holders("net") == ["b"]


def granted(told: Sequence[Any]) -> list[tuple[str, int]]:
    return [(one.job, one.position) for one in told if isinstance(one, Grant)]


def test_a_pull_goes_before_a_push_that_was_ready_earlier() -> None:
    state, _ = after(*started("a", 1), *started("b", 2, position=2), *started("c", 3, position=3))

    state, told = after(Done(job="a", position=0), queue=state)
    assert granted(told) == [("c", 3)]
    _, told = after(Done(job="c", position=3), queue=state)

    assert granted(told) == [("b", 2)], "nobody pulls, so it pushes"


def pushing(*, is_only: bool) -> NodeQueue:
    """A queue in which one job pushes, and another one waits to."""
    begun = started("a", 1, position=2)
    begun[0] = replace(begun[0], is_only=is_only)
    state, _ = after(*begun, *started("b", 2, position=2))
    assert state.holders("net") == ["a"]
    return state


def test_the_network_is_kept_for_the_pull_of_a_job_that_has_pushed() -> None:
    state, told = after(Done(job="a", position=2), queue=pushing(is_only=True))
    assert granted(told) == []
    assert Pushed(job="a", position=3) in told

    state, told = after(Ready(epoch=1, job="a", position=3, number=3), Want(job="a", position=3), queue=state)
    assert granted(told) == [("a", 3)]
    same, told = after(PullDue(job="a", position=3), queue=state)
    assert (same, told) == (state, [])
    _, told = after(Done(job="a", position=3), queue=state)

    assert granted(told) == [("b", 2)]


def test_a_job_that_asks_for_its_pull_before_it_says_that_it_has_pushed_has_the_network_too() -> None:
    state, told = after(Want(job="a", position=3), queue=pushing(is_only=True))
    assert granted(told) == []

    _, told = after(Ready(epoch=1, job="a", position=3, number=3), queue=state)

    assert granted(told) == [("a", 3)]


@pytest.mark.parametrize("event", [PullDue(job="a", position=3), Died(job="a")])
def test_a_pull_that_does_not_come_keeps_the_network_from_nobody(event: PullDue | Died) -> None:
    _, told = after(Done(job="a", position=2), event, queue=pushing(is_only=True))

    assert granted(told) == [("b", 2)]


def test_for_a_job_of_several_workers_nothing_is_kept_since_its_pull_waits_for_all_pushes() -> None:
    _, told = after(Done(job="a", position=2), queue=pushing(is_only=False))

    assert granted(told) == [("b", 2)]
    assert not [one for one in told if isinstance(one, Pushed)]


def test_a_pull_that_gives_way_is_behind_a_push_that_waits() -> None:
    state, _ = after(*started("a", 2), *started("b", 1, position=2))

    state, told = after(Yield(job="a", position=0), queue=state)
    assert granted(told) == [("b", 2)]
    state, told = after(Yield(job="b", position=2), queue=state)
    assert granted(told) == [("a", 0)], "a push gives way to a pull too"
    _, told = after(Yield(job="a", position=0), queue=state)

    assert granted(told) == [("b", 2)], "as often as it gives way"


def test_one_that_gave_way_goes_before_what_comes_after() -> None:
    state, _ = after(*started("a", 2), *started("b", 1, position=2))
    state, told = after(Yield(job="a", position=0), queue=state)
    assert granted(told) == [("b", 2)]
    state, _ = after(*started("c", 3), *started("d", 4, position=2), queue=state)

    state, told = after(Done(job="b", position=2), queue=state)
    assert granted(told) == [("a", 0)]
    _, told = after(Yield(job="a", position=0), Done(job="c", position=0), queue=state)

    assert granted(told) == [("d", 2)], "it gives way to all who are ready, the push too"


def test_one_that_gave_way_to_a_worker_that_dies_does_not_wait_for_it() -> None:
    state, _ = after(*started("a", 1), *started("b", 2, position=2), *started("c", 3, position=2))
    state, _ = after(Yield(job="a", position=0), Died(job="c"), queue=state)

    _, told = after(Done(job="b", position=2), queue=state)

    assert granted(told) == [("a", 0)]


def test_a_processor_that_is_given_back_goes_to_another_one_that_is_ready() -> None:
    state, _ = after(*started("a", 1, position=1), *started("b", 2, position=1))

    _, told = after(Yield(job="a", position=1), queue=state)

    assert granted(told) == [("b", 1)]


class OneNode:
    """Jobs of one worker each, whose next subtask is ready at once, and how often others go before one that waits."""

    def __init__(self, jobs: Sequence[str], *, is_only: bool) -> None:
        self.queue, _ = node_queue.step(NodeQueue(), Together(epoch=1))
        self.numbers, self.dues = 0, list[PullDue]()
        # Of each job that is ready and waits: the job and phase of permissions given since.
        self.before: dict[str, list[tuple[str, str]]] = {}
        for job in jobs:
            self.tell(Hello(job=job, worker=0, position=-2, is_first=True, is_only=is_only))
            self.tell(Bound(epoch=1, job=job))
            self.ask(job, -2)

    def tell(self, event: Any) -> None:
        self.queue, told = node_queue.step(self.queue, event)
        self.dues += [PullDue(job=one.job, position=one.position) for one in told if isinstance(one, Pushed)]
        for job, position in granted(told):
            self.before.pop(job, None)
            for other, seen in self.before.items():
                if resource_of(self.queue.workers[other].position) == resource_of(position):
                    seen.append((job, phase_of(position).removeprefix("INIT_")))

    def ask(self, job: str, position: int) -> None:
        self.numbers += 1
        self.before[job] = []
        self.tell(Want(job=job, position=position))
        self.tell(Ready(epoch=1, job=job, position=position, number=self.numbers))

    def play(self, job: str, move: str) -> None:
        one = self.queue.workers[job]
        if move == "due":
            while self.dues:
                self.tell(self.dues.pop(0))
        elif one.place in ("held", "late") and move == "yield":
            self.before[job] = []
            self.tell(Yield(job=job, position=one.position))
        elif one.place == "held" and move == "deadline":
            assert one.lease is not None
            self.tell(Deadline(job=job, lease=one.lease))
        elif one.place in ("held", "late") and move == "done":
            self.tell(Done(job=job, position=one.position))
            self.ask(job, one.position + 1)


@settings(max_examples=200, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["done", "done", "yield", "yield", "deadline", "due"])),
        max_size=120,
    ),
    is_only=st.booleans(),
)
def test_whoever_is_ready_waits_for_one_pull_and_one_push_of_each_other_job_whoever_gives_way(
    moves: Sequence[tuple[str, str]], is_only: bool
) -> None:
    node = OneNode("abc", is_only=is_only)
    for job, move in moves:
        node.play(job, move)
        for waits, seen in node.before.items():
            assert len(seen) == len(set(seen)), f"{waits} has waited for {seen}"
        for resource in ("cpu", "net"):
            is_kept = resource == "net" and any(one.pulls_next for one in node.queue.workers.values())
            assert is_kept or node.queue.holders(resource) or not node.queue.ready(resource), "nobody has what is free"


def test_a_second_network_permission_can_be_had() -> None:
    state, _ = after(*started("a", 1), *started("b", 2), queue=NodeQueue(epoch=1, is_apart=False, net_permits=2))

    assert state.holders("net") == ["a", "b"]


def test_a_permission_ends_at_its_deadline_and_the_next_goes_on() -> None:
    state, _ = after(*started("a", 1), *started("b", 2))
    lease = state.workers["a"].lease
    assert lease is not None

    same, told = after(Deadline(job="a", lease=lease - 1), queue=state)
    assert (same, told) == (state, [])
    state, told = after(Deadline(job="a", lease=lease), queue=state)

    assert told[0] == Overdue(job="a", position=0)
    assert [one.job for one in told if isinstance(one, Grant)] == ["b"]
    state, told = after(Done(job="a", position=0), queue=state)
    assert told == [Progress(epoch=1, job="a", worker=0, position=0)], "its time is not noted"


def test_a_dead_worker_and_one_that_lies_hold_nothing() -> None:
    state, _ = after(*started("a", 1), *started("b", 2))

    for event, first in (
        (Died(job="a"), Grant),
        (Want(job="a", position=5), HangUp),
        (Done(job="a", position=9), HangUp),
    ):
        after_it, told = after(event, queue=state)
        assert isinstance(told[0], first)
        assert after_it.holders("net") == ["b"]
        assert "a" not in after_it.workers


@pytest.mark.parametrize("is_late", [False, True])
def test_a_holder_that_gives_way_in_a_new_epoch_gets_its_turn_again(is_late: bool) -> None:
    state, _ = after(*started("a", 1))
    state, _ = after(Together(epoch=2), queue=state)
    if is_late:
        state = replace(state, workers={"a": replace(state.workers["a"], place="late", lease=None)})
    again = (Bound(epoch=2, job="a"), Ready(epoch=2, job="a", position=0, number=1), Yield(job="a", position=0))

    _, told = after(*again, queue=state)

    assert [(one.job, one.position, one.lease) for one in told if isinstance(one, Grant)] == [("a", 0, 2)]


def test_permissions_last_a_few_times_as_long_as_the_steps_take() -> None:
    _, told = after(
        Hello(job="a", worker=0, position=1, is_first=True),
        Measured(job="a", comp_s=2.0, net_s=0.01),
        Ready(epoch=1, job="a", position=1, number=1),
        Want(job="a", position=1),
    )

    assert [one.lease_s for one in told if isinstance(one, Grant)] == [8.0]


def owned(owner: str, job: str, number: int, position: int = 1) -> list[Any]:
    """A job of an owner that is ready and asks."""
    hello, *rest = started(job, number, position=position)
    return [replace(hello, owner=owner), *rest]


def deadline_of(state: NodeQueue, job: str) -> Deadline:
    lease = state.workers[job].lease
    assert lease is not None
    return Deadline(job=job, lease=lease)


def test_a_job_that_meets_its_deadline_before_its_steps_are_known_gets_shorter_permissions() -> None:
    state, told = after(*started("a", 1, position=1))
    leases_s = list[float | None]()
    for turn in range(5):
        leases_s += [one.lease_s for one in told if isinstance(one, Grant)]
        position = 1 + 3 * turn
        again = Ready(epoch=1, job="a", position=position + 3, number=turn + 2)
        state, told = after(
            deadline_of(state, "a"), Done(job="a", position=position), again, Want(job="a", position=position + 3),
            queue=state,
        )  # fmt: skip

    assert leases_s == [UNKNOWN_LEASE_S, 15.0, 3.75, LEAST_LEASE_S, LEAST_LEASE_S]


def test_no_measured_step_makes_a_permission_longer_than_the_longest() -> None:
    state, _ = after(Hello(job="a", worker=0, position=1, is_first=True))

    state, _ = after(Measured(job="a", comp_s=3000.0, net_s=3000.0), queue=state)

    assert set(state.workers["a"].lease_s.values()) == {UNKNOWN_LEASE_S}


def test_jobs_of_an_owner_that_held_turns_without_work_come_last() -> None:
    state, _ = after(*owned("bad", "a", 1), *owned("bad", "b", 2), *owned("good", "c", 3))
    assert state.holders("cpu") == ["a"]

    _, told = after(
        Idled(job="a", held_s=LAST_FROM_S / 2), Idled(job="a", held_s=LAST_FROM_S), Done(job="a", position=1),
        queue=state,
    )  # fmt: skip

    assert granted(told) == [("c", 1)]


def test_an_owner_keeps_others_waiting_for_a_bounded_time_in_all_whatever_it_connects() -> None:
    """Each of its jobs is new, holds its turn for 7 s and dies."""
    state, told = after(*owned("bad", "0", 1))
    held_s, number = 0.0, 0
    while granted(told) and state.workers[f"{number}"].lease is not None:
        lease_s = next(one.lease_s or 0.0 for one in told if isinstance(one, Grant))
        for_s = min(7.0, lease_s)
        held_s += for_s
        state, _ = after(Idled(job=f"{number}", held_s=for_s), Died(job=f"{number}"), queue=state)
        number += 1
        state, told = after(*owned("bad", f"{number}", number + 1), queue=state)

    assert IDLE_MOST_S <= held_s <= IDLE_MOST_S + LEAST_LEASE_S
    _, told = after(*owned("good", "c", number + 2), queue=state)
    assert granted(told) == [("c", 1)], "whose turn nobody else has"


def test_an_owner_at_the_bound_is_let_through_at_once_and_has_turns_again_when_it_is_forgiven() -> None:
    state, _ = after(*owned("bad", "a", 1), *owned("bad", "b", 2), *owned("good", "c", 3))

    state, told = after(Idled(job="a", held_s=IDLE_MOST_S), queue=state)

    assert told == [Bypassed(owner="bad"), Grant(job="b", position=1, lease=None, lease_s=None)]
    state, told = after(Died(job="a"), queue=state)
    assert granted(told) == [("c", 1)]
    _, told = after(Passed(seconds=60.0), *owned("bad", "d", 4, position=0), queue=state)
    assert [one.lease is None for one in told if isinstance(one, Grant)] == [False]


def test_an_owner_with_many_long_turns_lets_another_one_go_first_in_between() -> None:
    """It works in all of them, so nothing else is wrong with it."""
    many = [event for number in range(9) for event in owned("many", f"{number}", number + 1)]
    state, _ = after(*many, *owned("one", "z", 99))
    turns = list[str]()
    while state.holders("cpu") != ["z"]:
        turns += state.holders("cpu")
        state, _ = after(Done(job=turns[-1], position=1), queue=state)

    assert len(turns) == 2


def test_jobs_with_short_turns_go_in_the_order_in_which_they_were_ready_whosever_they_are() -> None:
    state, _ = after(*owned("many", "0", 1))
    for number in range(1, 9):
        state, _ = after(
            replace(owned("many", f"{number}", 0)[0]), Measured(job=f"{number}", comp_s=0.1, net_s=0.1),
            *owned("many", f"{number}", number + 1)[1:], queue=state,
        )  # fmt: skip
    state, _ = after(*owned("one", "z", 99), queue=state)
    turns = list[str]()
    while state.holders("cpu") != ["z"]:
        turns += state.holders("cpu")
        state, _ = after(Done(job=turns[-1], position=1), queue=state)

    assert turns == [f"{number}" for number in range(9)]


def test_all_go_on_when_a_node_of_the_group_is_away() -> None:
    state, _ = after(*started("a", 1), *started("b", 2))

    state, told = after(Apart(epoch=1), queue=state)

    assert told == [Grant(job="b", position=0, lease=None, lease_s=None)]
    _, told = after(Want(job="b", position=1), queue=state)
    assert Grant(job="b", position=1, lease=None, lease_s=None) in told


@pytest.mark.parametrize("event", [Together(epoch=2), Apart(epoch=1)])
def test_a_stopped_worker_loses_its_turn_at_its_deadline_in_a_new_epoch_too(event: Together | Apart) -> None:
    state, _ = after(*started("a", 1))
    lease = state.workers["a"].lease
    assert lease is not None

    _, told = after(event, Deadline(job="a", lease=lease), queue=state)

    assert Overdue(job="a", position=0) in told


def test_a_job_is_let_through_until_all_its_workers_are_known() -> None:
    state, told = after(Hello(job="a", worker=0, position=4, is_first=False), Want(job="a", position=4))
    assert told[-1] == Grant(job="a", position=4, lease=None, lease_s=None)

    state, _ = after(Bound(epoch=1, job="a"), queue=state)

    assert after(Want(job="a", position=5), queue=state)[1] == [Progress(epoch=1, job="a", worker=0, position=4)]


def test_a_job_that_begins_waits_for_all_and_not_for_ever() -> None:
    state, told = after(Hello(job="a", worker=0, position=-2, is_first=True), Want(job="a", position=-2))
    assert not [one for one in told if isinstance(one, Grant)]

    _, told = after(StartOver(job="a"), queue=state)

    assert told == [Grant(job="a", position=-2, lease=None, lease_s=None)]


def test_what_an_older_epoch_says_is_dropped() -> None:
    state, _ = after(Together(epoch=2))

    for event in (Together(epoch=2), Together(epoch=1), Apart(epoch=1)):
        assert after(event, queue=state) == (state, [])
    old, _ = after(Hello(job="a", worker=0, position=0, is_first=True), queue=state)
    assert after(Ready(epoch=1, job="a", position=0, number=1), queue=old) == (old, [])


def whole(jobs: dict[str, int]) -> Synchronizer:
    state = Synchronizer()
    nodes = frozenset(f"{number}" for number in range(max(jobs.values())))
    state, _ = synchronizer.step(state, Members(epoch=1, nodes=nodes, jobs=jobs))
    for node in sorted(nodes):
        state, _ = synchronizer.step(state, Joined(node=node))
    return state


def said(state: Synchronizer, *progress: tuple[str, int, int]) -> tuple[Synchronizer, list[Any]]:
    told = list[Any]()
    for job, worker, position in progress:
        state, more = synchronizer.step(state, Progress(epoch=state.epoch, job=job, worker=worker, position=position))
        told += more
    return state, told


def test_a_subtask_is_ready_when_all_workers_have_done_the_one_before() -> None:
    state = whole({"a": 2, "b": 2})
    epoch = state.epoch

    state, told = said(state, ("a", 0, -1), ("b", 0, -1), ("b", 1, -1), ("a", 0, 0), ("a", 1, -1))

    assert told == [
        Bound(epoch=epoch, job="b"), Ready(epoch=epoch, job="b", position=0, number=1),
        Bound(epoch=epoch, job="a"), Ready(epoch=epoch, job="a", position=0, number=2),
    ]  # fmt: skip
    assert said(state, ("a", 0, 0), ("a", 1, -1), ("c", 0, 5), ("a", 7, 5))[1] == []
    assert said(state, ("a", 1, 0))[1] == [Ready(epoch=epoch, job="a", position=1, number=3)]


def test_a_node_that_leaves_frees_all_and_a_new_epoch_begins_when_it_is_back() -> None:
    state, _ = said(whole({"a": 2}), ("a", 0, -1), ("a", 1, -1))
    epoch = state.epoch

    state, told = synchronizer.step(state, Left(node="1"))
    assert told == (Apart(epoch=epoch),)
    assert said(state, ("a", 0, 0), ("a", 1, 0))[1] == []
    state, told = synchronizer.step(state, Joined(node="1"))

    assert told == (Together(epoch=epoch + 1),)
    assert said(state, ("a", 0, 3), ("a", 1, 4))[1][-1] == Ready(epoch=epoch + 1, job="a", position=4, number=2)


@pytest.mark.parametrize(
    "event", [Members(epoch=1, nodes=frozenset("0"), jobs={"a": 1}), Joined(node="0"), Joined(node="9"), Left(node="9")]
)
def test_what_is_known_or_foreign_changes_nothing(event: Any) -> None:
    state = whole({"a": 2})

    assert synchronizer.step(state, event) == (state, ())


def test_jobs_that_leave_the_group_are_forgotten() -> None:
    state, _ = said(whole({"a": 2, "b": 2}), ("a", 0, -1), ("a", 1, -1))

    state, told = synchronizer.step(state, Members(epoch=9, nodes=state.nodes, jobs={"b": 2}))

    assert told == (Together(epoch=9),)
    assert list(state.jobs) == ["b"]
    assert replace(state, number=0).epoch == 9
