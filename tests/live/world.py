"""A small cluster without clock, store or sockets: a log in memory, the manager's mind, and nodes that obey it."""

from collections.abc import Callable, Mapping

import msgspec

from farside.scheduler.admission.idle_gpus import NO_IDLE_RULES, IdleRules
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.domain import Rules
from farside.scheduler.manager.colocation.outlook import NO_RULES, ColocationRules
from farside.scheduler.manager.decider.decide import Decider
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.codec import decode_event, encode_event, is_decided
from farside.scheduler.manager.model.event import (
    Entry,
    Event,
    JobSubmitted,
    ReleaseRequested,
    SchedulerTookLead,
    TaskChanged,
    TaskPhase,
)
from farside.scheduler.manager.model.record import LiveJob, LiveTask, Phase
from farside.scheduler.manager.model.spec import JobBody, JobSpec, spec_of
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.predict.learned_times import LearnedTimes
from tests.live.facts import gpus as a_node_s_gpus
from tests.live.facts import joined

STEPS_MAX = 1000


def rules(order: str = "fifo", **settings: str) -> Rules:
    return Rules(order=make_order(order, settings), placement=make_placement("consolidate", {}))


def submitted_spec(told: Mapping[str, object]) -> JobSpec:
    """What the log keeps of a body that the API takes."""
    return spec_of(msgspec.convert(told, JobBody, strict=False), told)


class World:
    """Entries go through their JSON, as in a store; ``now_s`` moves when a test says so."""

    def __init__(
        self,
        rules: Rules,
        nodes: int = 2,
        gpus: int = 4,
        *,
        colocation: ColocationRules = NO_RULES,
        make_times: Callable[[], LearnedTimes | None] = lambda: None,
        partitions: Partitions = NO_PARTITIONS,
        idle: IdleRules = NO_IDLE_RULES,
        recall_s: float = 60.0,
    ) -> None:
        self.recall_s = recall_s
        self.rules, self.colocation, self.make_times = rules, colocation, make_times
        self.partitions, self.idle = partitions, idle
        self.log: list[Entry] = []
        self.now_s = 1000.0
        self.generation = 0
        self.heard = 0
        self.lead()
        for at in range(nodes):
            self.join(f"n{at}", gpus=gpus)

    # what is written

    def tell(self, event: Event, cause: str = "test") -> Entry:
        kind, body = encode_event(event)
        generation = self.generation if is_decided(event) else 0
        entry = Entry(
            seq=len(self.log) + 1, at_s=self.now_s, generation=generation, cause=cause, event=decode_event(kind, body)
        )
        self.log.append(entry)
        return entry

    def lead(self, state: LiveState | None = None) -> None:
        """A scheduler process starts, for the first time or again, from the log or from a snapshot."""
        state = state or LiveState()
        for entry in self.log[state.seq :]:
            apply(state, entry)
        self.decider = Decider(
            self.rules, state, self.now_s, colocation=self.colocation, times=self.make_times(),
            partitions=self.partitions, idle=self.idle, recall_s=self.recall_s,
        )  # fmt: skip
        self.heard = len(self.log)
        self.generation += 1
        self.tell(SchedulerTookLead(generation=self.generation, holder="test", counts_lent=True))
        self.settle()

    def settle(self) -> None:
        """The scheduler process decides until there is nothing more to decide."""
        for _ in range(STEPS_MAX):
            self.read()
            drafts = self.decider.next_events(self.now_s)
            if not drafts:
                return
            while drafts:
                for draft in drafts:
                    self.tell(draft.event, draft.cause)
                self.read()
                drafts = self.decider.next_events(self.now_s, may_plan=False)
        raise AssertionError(f"the scheduler process never comes to an end: {[entry.event for entry in self.log[-6:]]}")

    def read(self) -> None:
        while self.heard < len(self.log):
            self.decider.hear(self.log[self.heard])
            self.heard += 1

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.decider.next_wake_s() <= end_s:
            self.now_s = max(self.now_s, self.decider.next_wake_s())
            self.settle()
        self.now_s = end_s
        self.settle()

    # what happens

    def join(self, node: str, *, gpus: int = 4, boot_id: str = "boot-1") -> None:
        self.tell(
            joined(
                node, "127.0.0.1", boot_id=boot_id, cpus=16, memory_bytes=1 << 36, headroom_bytes=1 << 36,
                gpus=a_node_s_gpus(gpus, "H200"),
            )
        )  # fmt: skip
        self.settle()

    def submit(self, gpus: int = 1, *, count: int = 1, user: str = "ann", **more: object) -> str:
        spec = msgspec.structs.replace(JobSpec(argv=("true",), gpus=gpus), **more)
        self.tell(JobSubmitted(spec=spec, user=user, count=count))
        number = self.state.next_number
        self.settle()
        return str(number)

    def release(self, job_id: str) -> None:
        self.does(ReleaseRequested(job_id=job_id, by="ann"))

    def does(self, event: Event) -> None:
        self.tell(event)
        self.settle()

    def task(self, task: LiveTask, phase: TaskPhase, **more: object) -> None:
        self.does(
            TaskChanged(
                node=task.node, job_id=task.job_id, rank=task.rank, start=task.start, phase=phase, **more,  # type: ignore[arg-type]
            )
        )  # fmt: skip

    def runs(self, job_id: str) -> None:
        for task in self.job(job_id).tasks:
            self.task(task, TaskPhase.RUNNING)

    def exits(self, job_id: str, code: int = 0, cause: str = "") -> None:
        for task in self.job(job_id).tasks:
            if not task.is_gone:
                self.task(task, TaskPhase.EXITED, exit_code=code, cause=cause)

    # what is so

    @property
    def state(self) -> LiveState:
        return self.decider.state

    def job(self, job_id: str) -> LiveJob:
        return self.state.jobs[job_id]

    def phase(self, job_id: str) -> Phase:
        return self.job(job_id).phase
