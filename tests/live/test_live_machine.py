"""Any mixture of users, nodes, losses and restarts, and no GPU is ever given to two, nothing started twice or lost."""

from dataclasses import dataclass, field, replace

from hypothesis import Phase as Part
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    CancelRequested,
    DrainRequested,
    HistoryForgotten,
    HoldRequested,
    NodeLost,
    PowerChanged,
    ReleaseRequested,
    TaskChanged,
    TaskPhase,
    UndrainRequested,
)
from farside.scheduler.manager.model.power_record import NodePowerRecord
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.role import Role
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.spec import Ranks
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.power.state import Phase as Power
from tests.live.world import World, rules

NODES, GPUS = 3, 4
FINISHED_S = 1e6
node_numbers = st.integers(0, NODES - 1)
Key = tuple[str, int, int]


@dataclass
class FakeNode:
    """What really runs on a node, whatever the manager believes."""

    is_up: bool = True
    boot: int = 1
    running: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    ended: dict[Key, int] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    @initialize(order=st.sampled_from(["fifo", "las", "srtf", "best-effort"]))
    def begin(self, order: str) -> None:
        settings = {"limits_gpu_s": "50,200", "promote_knob": "4"} if order == "las" else {}
        self.world = World(rules(order, **settings), nodes=NODES, gpus=GPUS)
        self.nodes = {f"n{at}": FakeNode() for at in range(NODES)}

    # ---- users and operators

    @rule(gpus=st.integers(1, 9), limit_s=st.sampled_from([0.0, 90.0]), per_gpu=st.booleans(), count=st.integers(1, 3))
    def submit(self, gpus: int, limit_s: float, per_gpu: bool, count: int) -> None:
        ranks = Ranks.GPU if per_gpu else Ranks.NODE
        self.world.submit(gpus, time_limit_s=limit_s, ranks=ranks, count=count, retries=1)

    @rule(workers=st.integers(1, 9), servers=st.integers(1, 5), is_service=st.booleans())
    def submit_roles(self, workers: int, servers: int, is_service: bool) -> None:
        ps = Role(name="ps", argv=("serve",), count=servers, gpus=0, is_service=is_service)
        roles = (ps, Role(name="worker", argv=("work",), count=workers))
        self.world.submit(workers, roles=roles, argv=ps.argv, retries=1)

    @rule(data=st.data(), what=st.sampled_from([CancelRequested, HoldRequested, ReleaseRequested]))
    def ask(self, data: st.DataObject, what: type[CancelRequested]) -> None:
        jobs = list(self.world.state.unfinished)
        if jobs:
            self.world.does(what(job_id=data.draw(st.sampled_from(jobs)), by="ann"))

    @rule(at=node_numbers, is_drained=st.booleans())
    def drain(self, at: int, is_drained: bool) -> None:
        event = DrainRequested(node=f"n{at}", reason="", by="root") if is_drained else None
        self.world.does(event or UndrainRequested(node=f"n{at}", by="root"))

    @rule(seconds=st.floats(0.1, 100.0))
    def wait(self, seconds: float) -> None:
        self.world.pass_s(seconds)

    # ---- nodes

    @rule(at=node_numbers)
    def obey(self, at: int) -> None:
        """A node does what it has been told, and says so."""
        self.obey_node(f"n{at}")

    def obey_node(self, name: str) -> None:
        node, state = self.nodes[name], self.world.state
        if not node.is_up:
            return
        for key in state.nodes[name].tasks:
            task = state.task(key)
            assert task is not None
            job = state.jobs[task.job_id]
            is_wanted = job.phase in (Phase.STARTING, Phase.RUNNING) and job.start == task.start
            if key in node.ended:
                self.say(name, key, TaskPhase.EXITED, node.ended[key])
            elif is_wanted and key not in node.running:
                busy = {gpu for gpus in node.running.values() for gpu in gpus}
                assert not busy & set(task.gpus), "two processes on one GPU"
                node.running[key] = task.gpus
                self.say(name, key, TaskPhase.RUNNING)
            elif not is_wanted:
                node.running.pop(key, None)
                node.ended[key] = 143
                self.say(name, key, TaskPhase.EXITED, 143, "stopped")

    def say(self, name: str, key: Key, phase: TaskPhase, code: int | None = None, cause: str = "") -> None:
        job_id, start, rank = key
        self.world.does(
            TaskChanged(
                node=name, job_id=job_id, start=start, rank=rank, phase=phase, exit_code=code, cause=cause
            )
        )  # fmt: skip

    @rule(at=node_numbers, data=st.data(), code=st.sampled_from([0, 0, 0, 1]), is_told=st.booleans())
    def process_ends(self, at: int, data: st.DataObject, code: int, is_told: bool) -> None:
        name = f"n{at}"
        node = self.nodes[name]
        if node.running:
            key = data.draw(st.sampled_from(sorted(node.running)))
            del node.running[key]
            node.ended[key] = code
            if is_told and node.is_up:
                self.say(name, key, TaskPhase.EXITED, code)

    @rule(at=node_numbers)
    def lose(self, at: int) -> None:
        self.nodes[f"n{at}"].is_up = False
        self.world.does(NodeLost(node=f"n{at}", reason="not heard of"))

    @rule(at=node_numbers, has_booted=st.booleans())
    def come_back(self, at: int, has_booted: bool) -> None:
        node = self.nodes[f"n{at}"]
        node.is_up = True
        if has_booted:
            node.boot += 1
            node.running.clear()
            node.ended.clear()
        self.world.join(f"n{at}", gpus=GPUS, boot_id=f"boot-{node.boot}")

    # ---- power, as who keeps it tells of it

    def power(self, name: str, **changes: object) -> None:
        before = self.world.state.nodes[name].power or NodePowerRecord()
        note = replace(before, number=before.number + 1, **changes)  # type: ignore[arg-type]
        self.world.does(PowerChanged(node=name, generation=self.world.generation, note=note))

    @rule(at=node_numbers)
    def close(self, at: int) -> None:
        node = self.world.state.nodes[f"n{at}"]
        if node.has_power:
            number = node.power.number + 1 if node.power is not None else 1
            self.power(node.name, phase=Power.DRAINING, drain_number=number)

    @rule(at=node_numbers)
    def go_off(self, at: int) -> None:
        """Only once the scheduler process has closed it, and nothing stands there."""
        name = f"n{at}"
        node, state = self.world.state.nodes[name], self.world.state
        is_closed = node.power is not None and 0 < node.power.drain_number == node.closed_by
        if is_closed and node.power.phase is Power.DRAINING and not state.jobs_on(name):  # type: ignore[union-attr]
            assert not self.nodes[name].running, "a process is switched off with its node"
            self.power(name, is_stopping=True, command="soft-off")
            self.power(name, phase=Power.OFF, is_stopping=False, command="")
            self.nodes[name].is_up = False

    @rule(at=node_numbers)
    def open(self, at: int) -> None:
        """Called back while it is emptied, or booted."""
        name = f"n{at}"
        node = self.world.state.nodes[name]
        if node.has_power:
            return
        if node.power is not None and node.power.phase is Power.OFF:
            self.power(name, phase=Power.BOOTING)
            self.come_back(at, has_booted=True)
        self.power(name, phase=Power.ON, drain_number=0)

    # ---- the manager

    @rule(ago_s=st.floats(0, 100))
    def forget(self, ago_s: float) -> None:
        self.world.does(HistoryForgotten(before_s=self.world.now_s - ago_s))

    @rule()
    def begin_from_an_image(self) -> None:
        self.world.lead(decode_state(encode_state(self.world.state)))

    @rule()
    def brain_restarts(self) -> None:
        self.world.lead()

    @invariant()
    def the_log_is_sound(self) -> None:
        if hasattr(self, "world"):
            assert list(violations(self.world.log)) == []

    @invariant()
    def who_has_a_place_on_a_node_is_known_without_looking_at_all_jobs(self) -> None:
        if not hasattr(self, "world"):
            return
        state = self.world.state
        for node in state.nodes.values():
            looked = {job.job_id for job in state.live_jobs() if node.name in job.nodes}
            assert set(state.jobs_on(node.name)) == looked | {job_id for job_id, _, _ in node.tasks}

    def teardown(self) -> None:
        """Whatever happened: with all nodes there, all jobs that fit come to an end, and a reader sees the same."""
        if not hasattr(self, "world"):
            return
        for at in range(NODES):
            self.open(at)
            self.come_back(at, has_booted=False)
            self.world.does(UndrainRequested(node=f"n{at}", by="root"))
        for job_id in list(self.world.state.unfinished):
            self.world.does(ReleaseRequested(job_id=job_id, by="ann"))
        for _ in range(200):
            if not self.world.state.unfinished:
                break
            for name, node in self.nodes.items():
                self.obey_node(name)
                for key in list(node.running):
                    del node.running[key]
                    node.ended[key] = 0
                self.obey_node(name)
        world = self.world
        why = [(world.job(one), world.decider.why(one, world.now_s, str)) for one in world.state.unfinished]
        assert why == []
        assert list(violations(world.log, is_complete=True)) == []
        self.check_a_reader_sees_the_same()

    def check_a_reader_sees_the_same(self) -> None:
        state = LiveState()
        for entry in self.world.log:
            apply(state, entry)
        assert state.jobs.keys() == self.world.state.jobs.keys()
        assert {job.job_id: repr(job) for job in state.jobs.values()} == {
            job.job_id: repr(job) for job in self.world.state.jobs.values()
        }
        assert state.nodes == self.world.state.nodes
        assert encode_state(state) == encode_state(self.world.state)


# Not shrunk: that takes minutes, and a failure names its steps anyway.
Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None, phases=(Part.generate,))
TestMachine = Machine.TestCase
