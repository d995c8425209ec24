"""Which tasks a node knows: nothing run twice, no GPU given twice, nothing forgotten unasked."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from farside.agent import messages as m
from farside.agent.gpu_share import Device, parts_of
from farside.agent.run.ledger import (
    FINAL,
    FORGOTTEN_MAX,
    RANK,
    Action,
    Asked,
    Command,
    Event,
    Key,
    Launch,
    Ledger,
    Lengthen,
    Observed,
    Remove,
    Signal,
    Tell,
    Unled,
    Welcomed,
    over_below,
    shares_in,
    step,
)
from tests.agent.frames import SPEC, start

devices = st.builds(Device, st.integers(0, 2), st.sampled_from(["", "", "MIG-a", "MIG-b"]))


def asked(command: Command, *, objection: str = "", at_s: float = 10.0, is_proved: bool = True) -> Asked:
    return Asked(command=command, at_s=at_s, objection=objection, is_proved=is_proved)


def stop(task_id: str = "1.0", nth: int = 1, *, generation: int = 1) -> m.Stop:
    return m.Stop(task_id=task_id, start=nth, generation=generation, cause="preempted", grace_s=2)


def forget(task_id: str = "1.0", nth: int = 1) -> m.Forget:
    return m.Forget(task_id=task_id, start=nth)


def state(name: Any, task_id: str = "1.0", nth: int = 1, **more: Any) -> m.TaskState:
    return m.TaskState(task_id=task_id, start=nth, state=name, at_s=11.0, **more)


def after(*events: Event, ledger: Ledger | None = None) -> tuple[Ledger, tuple[Action, ...]]:
    """The ledger after all events, and the actions of the last."""
    now = ledger or Ledger()
    actions: tuple[Action, ...] = ()
    for event in events:
        now, actions = step(now, event)
    return now, actions


def told(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    return [(action.state.state, action.state.cause) for action in actions if isinstance(action, Tell)]


def test_a_start_is_launched_and_told() -> None:
    _, actions = after(asked(start()))

    assert [type(action) for action in actions] == [Launch, Tell]
    assert told(actions) == [("starting", "")]


def test_a_start_that_comes_again_is_answered_and_not_launched() -> None:
    _, actions = after(asked(start()), Observed(state=state("running")), asked(start()))

    assert told(actions) == [("running", "")]
    assert len(actions) == 1


@pytest.mark.parametrize("end", ["exited", "lost"])
def test_a_task_that_ended_is_not_started_again(end: str) -> None:
    _, actions = after(asked(start()), Observed(state=state(end)), asked(start()))

    assert told(actions) == [(end, "")]
    assert len(actions) == 1


@pytest.mark.parametrize("known", ["running", "exited"])
def test_a_start_that_has_the_number_of_another_job_s_task_is_told_so_and_not_how_that_one_is(known: str) -> None:
    theirs = msgspec.structs.replace(start(), submitted_s=1.0)
    ours = msgspec.structs.replace(theirs, submitted_s=2.0)
    before, _ = after(asked(theirs), Observed(state=state(known, exit_code=0)))

    ledger, actions = after(asked(ours), ledger=before)

    assert [
        (one.state.state, one.state.exit_code, one.state.submitted_s) for one in actions if isinstance(one, Tell)
    ] == [("lost", None, 2.0)]
    assert ledger.tasks[("1.0", 1)].state.state == known
    assert ledger.tasks[("1.0", 1)].state.submitted_s == 1.0


def test_a_forgotten_task_is_not_started_again() -> None:
    _, actions = after(asked(start()), Observed(state=state("exited")), asked(forget()), asked(start()))

    assert told(actions) == [("lost", "this start is over")]


def test_the_next_start_of_a_task_runs() -> None:
    _, actions = after(asked(start()), Observed(state=state("exited")), asked(start(nth=2)))

    assert isinstance(actions[0], Launch)


def test_two_starts_of_one_task_do_not_run_at_once() -> None:
    _, actions = after(asked(start(spec=msgspec.structs.replace(SPEC, gpus=()))), asked(start(nth=2)))

    assert told(actions) == [("exited", "another start of this task is running")]


def test_a_gpu_in_use_is_not_given_again() -> None:
    ledger, actions = after(asked(start("1.0")), asked(start("2.0")))

    assert told(actions) == [("exited", "GPU 0 is in use by job 1, start 1")]
    assert [(share.gpu, share.holder) for share in shares_in(ledger)] == [(0, ("1.0", 1))]


def test_a_gpu_is_free_once_its_task_ended() -> None:
    _, actions = after(asked(start("1.0")), Observed(state=state("exited")), asked(start("2.0")))

    assert isinstance(actions[0], Launch)


def test_an_objection_is_the_cause_of_an_end_without_exit_code() -> None:
    _, actions = after(asked(start(), objection="no user alice here"))

    assert told(actions) == [("exited", "no user alice here")]


def test_a_stop_signals_and_tells() -> None:
    _, actions = after(asked(start()), Observed(state=state("running")), asked(stop()))

    assert actions[0] == Signal(key=("1.0", 1), cause="preempted", grace_s=2)
    assert told(actions) == [("stopping", "preempted")]


def test_a_stop_of_what_was_never_started_keeps_it_from_starting() -> None:
    ledger, actions = after(asked(stop()))
    _, later = after(asked(start()), ledger=ledger)

    assert told(actions) == [("lost", "unknown on this node")]
    assert told(later) == [("lost", "this start is over")]


def test_a_stop_after_the_end_tells_the_end() -> None:
    _, actions = after(asked(start()), Observed(state=state("exited", exit_code=3)), asked(stop()))

    assert actions == (Tell(state=state("exited", exit_code=3)),)


def test_a_live_task_is_not_forgotten() -> None:
    _, actions = after(asked(start()), asked(forget()))

    assert told(actions) == [("starting", "")]


def test_a_task_that_ended_is_removed_when_the_manager_says_so() -> None:
    _, actions = after(asked(start()), Observed(state=state("exited")), asked(forget()))

    assert actions == (Remove(key=("1.0", 1)),)


@pytest.mark.parametrize(
    "poison", [Welcomed(generation=3000, is_proved=False), asked(stop(generation=3000), is_proved=False)]
)
def test_a_generation_that_no_proved_manager_had_is_forgotten_with_the_next_that_proves_itself(poison: Event) -> None:
    """[H2] A program in the manager's place said 3000, and the node refused its manager for ever."""
    poisoned, _ = after(asked(start("1.0", generation=7)), poison)

    ledger, actions = after(asked(stop("1.0", generation=8)), ledger=poisoned)

    assert over_below(poisoned, is_proved=False) == 3000
    assert isinstance(actions[0], Signal)
    assert (ledger.generation, ledger.proved_generation) == (8, 8)


def test_a_proved_manager_that_was_replaced_stays_refused_whatever_an_unproved_one_said() -> None:
    poisoned, _ = after(asked(start(generation=7)), Welcomed(generation=3000, is_proved=False))

    ledger, actions = after(asked(start("2.0", generation=6)), ledger=poisoned)

    assert (ledger, actions) == (poisoned, ())


def test_an_unproved_manager_is_fenced_by_every_generation() -> None:
    ledger, actions = after(asked(start(generation=7)), asked(start("2.0", generation=6), is_proved=False))

    assert (actions, ledger.generation) == ((), 7)


def test_a_node_that_is_told_to_forget_its_generation_obeys_the_next_manager() -> None:
    ledger, actions = after(asked(start(generation=7)), Unled(), asked(stop("1.0", generation=1)))

    assert isinstance(actions[0], Signal)
    assert ledger.generation == 1


@pytest.mark.parametrize("late", [start(generation=4), stop(generation=4)])
def test_a_command_of_an_older_generation_does_nothing(late: m.Start | m.Stop) -> None:
    before, _ = after(asked(start("9.0", generation=5)))

    assert step(before, asked(late)) == (before, ())


@pytest.mark.parametrize("late", ["starting", "running", "stopping", "lost"])
def test_an_end_stays(late: str) -> None:
    ledger, _ = after(asked(start()), Observed(state=state("exited", exit_code=0)))

    assert step(ledger, Observed(state=state(late))) == (ledger, ())


def extend(*, nth: int = 1, generation: int = 1) -> m.Extend:
    return m.Extend(task_id="1.0", start=nth, generation=generation, time_limit_s=60)


def test_a_longer_time_limit_is_taken_for_a_task_that_lives() -> None:
    _, actions = after(asked(start()), Observed(state=state("running")), asked(extend()))

    assert actions == (Lengthen(key=("1.0", 1), time_limit_s=60),)


@pytest.mark.parametrize(
    "before",
    [
        [],
        [asked(start()), Observed(state=state("exited", exit_code=0))],
        [asked(start(nth=2))],
        [asked(start()), asked(stop("2.0", generation=4))],  # a manager of a later generation has spoken since
    ],
)
def test_a_longer_time_limit_of_what_is_over_or_unknown_or_of_a_manager_that_is_over_changes_nothing(
    before: list[Event],
) -> None:
    ledger, _ = after(*before)

    after_it, actions = step(ledger, asked(extend()))

    assert (after_it.tasks, actions) == (ledger.tasks, ())


def test_a_running_that_comes_after_a_stop_is_late() -> None:
    ledger, actions = after(asked(start()), asked(stop()), Observed(state=state("running")))

    assert ledger.tasks["1.0", 1].state.state == "stopping"
    assert actions == ()


class LedgerMachine(RuleBasedStateMachine):
    """Commands and observations in any order, some of them twice, late, or of another generation."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.launched: Counter[Key] = Counter()
        self.ended: dict[Key, m.TaskState] = {}
        self.removed: set[Key] = set()

    task_ids = st.sampled_from(["1.0", "1.1", "2.0"])
    nths = st.integers(1, 3)

    def take(self, event: Event) -> None:
        before = self.ledger
        self.ledger, actions = step(before, event)
        for action in actions:
            if isinstance(action, Launch):
                self.launched[action.start.task_id, action.start.start] += 1
            elif isinstance(action, Remove):
                self.removed.add(action.key)
        for key, task in self.ledger.tasks.items():
            if key in before.tasks:
                assert RANK[task.state.state] >= RANK[before.tasks[key].state.state]
            if not task.is_live:
                assert self.ended.setdefault(key, task.state) == task.state
        for key in before.tasks.keys() - self.ledger.tasks.keys():
            assert isinstance(event, Asked)
            assert isinstance(event.command, m.Forget)
            assert key in self.removed
            assert not before.tasks[key].is_live

    @rule(
        task_id=task_ids, nth=nths, generation=st.integers(1, 3), held=st.lists(devices, max_size=3),
        is_proved=st.booleans(),
    )  # fmt: skip
    def start(self, task_id: str, nth: int, generation: int, held: list[Device], is_proved: bool) -> None:
        spec = msgspec.structs.replace(SPEC, gpus=tuple(one.gpu for one in held), parts=parts_of(held))
        self.take(asked(start(task_id, nth, generation=generation, spec=spec), is_proved=is_proved))

    @rule(task_id=task_ids, nth=nths, generation=st.integers(1, 3), is_proved=st.booleans())
    def stop(self, task_id: str, nth: int, generation: int, is_proved: bool) -> None:
        self.take(asked(stop(task_id, nth, generation=generation), is_proved=is_proved))

    @rule(generation=st.integers(1, 3), is_proved=st.booleans())
    def welcome(self, generation: int, is_proved: bool) -> None:
        proved = self.ledger.proved_generation
        self.take(Welcomed(generation=generation, is_proved=is_proved))
        assert self.ledger.proved_generation == (max(proved, generation) if is_proved else proved)

    @rule(task_id=task_ids, nth=nths)
    def forget(self, task_id: str, nth: int) -> None:
        self.take(asked(forget(task_id, nth)))

    @rule(task_id=task_ids, nth=nths, name=st.sampled_from(sorted(RANK)))
    def observe(self, task_id: str, nth: int, name: str) -> None:
        self.take(Observed(state=state(name, task_id, nth)))

    @invariant()
    def nothing_is_launched_twice(self) -> None:
        assert all(count == 1 for count in self.launched.values())

    @invariant()
    def no_gpu_belongs_to_two(self) -> None:
        shares = shares_in(self.ledger)
        assert len({share.device for share in shares}) == len(shares)
        whole, in_parts = ({share.gpu for share in shares if bool(share.part) is cut} for cut in (False, True))
        assert not whole & in_parts

    @invariant()
    def what_was_launched_is_known_until_it_is_forgotten(self) -> None:
        assert self.launched.keys() <= self.ledger.tasks.keys() | self.removed

    @invariant()
    def nothing_grows_without_bounds(self) -> None:
        assert len(self.ledger.forgotten) <= FORGOTTEN_MAX
        assert max(RANK.values()) == FINAL


TestLedger = LedgerMachine.TestCase
