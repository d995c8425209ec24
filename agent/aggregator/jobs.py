"""The jobs of an Aggregator: who may come, what the engine is asked for, when a job's chunks are let go."""

import errno
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from farside.agent.aggregator.door import Attach, Hello, Refused, Request
from farside.agent.aggregator.engine_job import engine_job
from farside.agent.aggregator.layout import Layout, first_difference, make_layout, rule_problem, update_of
from farside.agent.aggregator.plan import AggregatorAddress, JobPlan, Run, job_key, plan_problem, runs_problem
from farside.errors import ConfigError, EngineError
from farside.kmod_shim.engine.aggregation import Aggregator, AggregatorStats
from farside.log import get_log
from farside.proof import key_named
from farside.units import format_bytes

_log = get_log("aggregator.jobs")

LIVES_MAX = 16
"""Processes of one rank that another one has followed, as many as are remembered."""

JobId = tuple[str, int]
NO_GRANTS: Mapping[JobId, bytes] = {}


class NotAdmittedError(Exception):
    """Why a caller gets no lane."""

    def __init__(self, line: str, *, is_final: bool = True) -> None:
        super().__init__(line)
        self.is_final = is_final


@dataclass(slots=True, kw_only=True)
class Order:
    """What a manager has said of a job: its plan, and this Aggregator's number in it."""

    number: int
    plan: JobPlan


@dataclass(slots=True, kw_only=True)
class ServedJob:
    """One start of a job that the engine has.

    Attributes:
        engine_number: What the engine calls it.
        number: This Aggregator's number in the job.
        first_rank: The member whose declaration counts, since it came first.
        static_runs: Owners as the members say; empty: the manager's plan has them.
        lives: Of each rank the newest process.
        passed: Of each rank the processes before that.
        awaited: Callers who were admitted, and have no lane yet since their queue pair is being made.
        idle_since_s: When its last lane ended; None: it has one.
        is_granted: A manager had given it a key of its own when its first member came.
    """

    engine_number: int
    name: str
    start: int
    number: int
    layout: Layout
    rule: str
    members: int
    hold: bool
    first_rank: int
    static_runs: tuple[Run, ...]
    lives: dict[int, int] = field(default_factory=dict)
    passed: dict[int, list[int]] = field(default_factory=dict)
    awaited: int = 0
    idle_since_s: float | None = None
    is_lost: bool = False
    is_granted: bool = False

    @property
    def is_sum(self) -> bool:
        """No optimizer is stepped here."""
        return self.rule in ("sum", "mean")


class Jobs:
    """All jobs of one Aggregator process."""

    def __init__(
        self,
        engine: Aggregator,
        *,
        jobs_max: int,
        keep_s: float,
        memory_bytes: int,
        secrets: Callable[[], Sequence[bytes]],
        threads: int = 1,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``secrets``: keys of the key file as they are now; none: only a manager's jobs are served.

        ``threads``: the engine's.
        """
        self._engine = engine
        self._jobs_max = jobs_max
        self._keep_s = keep_s
        self._memory_bytes = memory_bytes
        self._secrets = secrets
        self._threads = threads
        self._now_s = now_s
        self._orders: dict[JobId, Order] = {}
        self._grants: Mapping[JobId, bytes] = {}
        self._jobs: dict[JobId, ServedJob] = {}
        self._by_number: dict[int, ServedJob] = {}
        self._last_number = 0

    def __iter__(self) -> Iterator[ServedJob]:
        return iter(tuple(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def ordered(self) -> int:
        """Jobs that a manager has said something of."""
        return len(self._orders)

    def of(self, engine_number: int) -> ServedJob | None:
        """The job that the engine calls so."""
        return self._by_number.get(engine_number)

    def order(self, job: ServedJob) -> Order | None:
        """What the manager said of a job; None: it is a static one."""
        return self._orders.get((job.name, job.start))

    # --- who may come

    def key_of(self, hello: Hello) -> bytes | Refused:
        """The key that a caller must prove."""
        order = self._orders.get((hello.job, hello.start))
        if order is not None:
            return key_named((order.plan.key,), hello.key_id) or Refused(f"the key is not that of job {hello.job:.60}")
        granted = self._grants.get((hello.job, hello.start))
        if granted is not None:
            return key_named((granted,), hello.key_id) or Refused(f"the key is not that of job {hello.job:.60}")
        secrets = self._secrets()
        if not secrets:  # its plan may be on its way
            return Refused(f"no plan has job {hello.job:.60}, and there is no key_file", is_final=False)
        known = key_named([job_key(secret, hello.job, hello.start) for secret in secrets], hello.key_id)
        line = "the job's key is not of this Aggregator's key_file; name the same file at both"
        return known or Refused(line, is_final=not hello.start)  # of a manager's start word may be on its way

    def admit(self, hello: Hello, request: Request) -> ServedJob:
        """The job of a caller that has proved its key, made known to the engine if need be.

        Raises:
            NotAdmittedError: it gets no lane, with the reason.
        """
        job = self._jobs.get((hello.job, hello.start))
        order = self._orders.get((hello.job, hello.start))
        if job is not None and not job.is_granted and (hello.job, hello.start) in self._grants:
            # Somebody with the key file has named it so before the manager said the key of its members.
            self.drop(job, why="the manager has given it a key of its own")
            job = None
        if job is not None and job.is_sum and (job.lives or job.static_runs) and not self._has_members(job):
            # What has no optimizer here is in its members alone, and a new process would wait for it for ever. Before
            # the first member of a manager's job comes, what is here is copied by the owner before.
            self.drop(job, why="all its members have gone")
            job = None
        if job is None:
            job = self._add(hello, request, order)
        else:
            self._check_same(job, request)
        if isinstance(request, Attach):
            self._check_member(job, request)
        job.idle_since_s = None
        return job

    @contextmanager
    def awaiting(self, job: ServedJob) -> Iterator[None]:
        """A caller that was admitted gets its lane later: meanwhile its job is not let go for want of members."""
        job.awaited += 1
        try:
            yield
        finally:
            job.awaited -= 1

    def admit_later(self, job: ServedJob, hello: Hello, request: Request) -> None:
        """Looks again at a caller that was admitted to a job a while ago.

        Raises:
            NotAdmittedError: the job was let go meanwhile, or another process of the caller's rank has come.
        """
        if self._jobs.get((hello.job, hello.start)) is not job:
            raise NotAdmittedError(f"job {hello.job:.60} was let go while its queue pair was made", is_final=False)
        self.admit(hello, request)

    def _has_members(self, job: ServedJob) -> bool:
        return job.awaited > 0 or self.stats(job).lanes > 0

    def _check_same(self, job: ServedJob, request: Request) -> None:
        try:
            _check_same(job, request)
        except NotAdmittedError as error:
            if not job.static_runs or self._has_members(job):
                raise
            raise NotAdmittedError(
                f"{error}. Job {job.name:.60} has ended and is kept for {self._keep_s:g} s: to begin anew, name "
                "another job, or wait"
            ) from error

    def _check_member(self, job: ServedJob, attach: Attach) -> None:
        if attach.rank >= job.members:
            raise NotAdmittedError(f"rank {attach.rank} of {job.members} members; ranks count from 0")
        passed = job.passed.setdefault(attach.rank, [])
        if attach.life in passed:
            raise NotAdmittedError(f"another process of rank {attach.rank} has come since; this one's place is taken")
        before = job.lives.get(attach.rank)
        # Whose chunks have been copied here it serves before any member has come.
        if job.is_sum and before not in (None, attach.life) and self.version(job) is not None:
            raise NotAdmittedError(
                f"rank {attach.rank} comes anew to a job that has begun and only sums: its parameters are in its "
                "processes alone; start all ranks again"
            )
        if before not in (None, attach.life):
            passed.append(before)
            del passed[:-LIVES_MAX]
        job.lives[attach.rank] = attach.life

    def _add(self, hello: Hello, request: Request, order: Order | None) -> ServedJob:
        self.drop_idle()
        if len(self._jobs) >= self._jobs_max:
            raise NotAdmittedError(f"the Aggregator has {len(self._jobs)} jobs, which are all it may have (max_jobs)")
        layout = _layout_of(request)
        if order is not None:
            runs: tuple[Run, ...] = ()
            _check_order(order, request, layout)
        else:
            runs = request.runs if isinstance(request, Attach) else ()
            numbers = {run.owner for run in runs} | {request.number}
            problem = runs_problem(runs, len(layout.chunks), sorted(numbers)) if runs else "it says nothing of owners"
            if problem:
                raise NotAdmittedError(f"the static plan of job {hello.job:.60}: {problem}")
        self._last_number = self._next_number()
        job = ServedJob(
            engine_number=self._last_number,
            name=hello.job,
            start=hello.start,
            number=request.number,
            layout=layout,
            rule=request.rule,
            members=request.members,
            hold=request.hold,
            first_rank=request.rank if isinstance(request, Attach) else 0,
            static_runs=runs,
            is_granted=(hello.job, hello.start) in self._grants,
        )
        self._tell_engine(job, order)
        self._jobs[hello.job, hello.start] = self._by_number[job.engine_number] = job
        _log.info("job", job=job.name, start=job.start, chunks=len(layout.chunks), members=job.members, rule=job.rule)
        return job

    def _next_number(self) -> int:
        """A new number for the engine: of the thread that has the least to sum, by members and bytes of its jobs."""
        load = [0] * self._threads
        for job in self:
            load[job.engine_number % self._threads] += sum(job.layout.sizes_bytes) * job.members
        first = self._last_number + 1
        return min(range(first, first + self._threads), key=lambda number: (load[number % self._threads], number))

    def _tell_engine(self, job: ServedJob, order: Order | None) -> None:
        try:
            self._engine.add_job(
                job.engine_number, engine_job(job.layout, rule=job.rule, members=job.members, hold=job.hold)
            )
            try:
                self._place(job, order.plan.runs if order is not None else job.static_runs)
            except BaseException:
                self._engine.drop_job(job.engine_number)
                raise
        except EngineError as error:
            if error.errno != errno.ENOMEM:
                raise NotAdmittedError(f"job {job.name:.60}: {error}") from error
            raise NotAdmittedError(
                f"the Aggregator is out of memory: job {job.name:.60} needs more than what is left of "
                f"{format_bytes(self._memory_bytes)} (memory_bytes); raise it, or name another Aggregator"
            ) from error

    def _place(self, job: ServedJob, runs: Sequence[Run]) -> None:
        for run in runs:
            self._engine.plan(
                job.engine_number,
                run.first,
                run.count,
                me=job.number,
                owner=run.owner,
                epoch=run.epoch,
                next_owner=run.next_owner,
                next_epoch=run.next_epoch,
            )

    # --- what a manager says

    def take_orders(self, orders: Sequence[Order], grants: Mapping[JobId, bytes] = NO_GRANTS) -> tuple[str, ...]:
        """Follows a manager's whole word: jobs of its that it does not name are let go, static ones stay.

        ``grants``: keys of jobs that it knows as static ones are known: their members bring the plan.

        Returns what could not be done, a line each.
        """
        self._grants = grants
        before, self._orders = self._orders, {(one.plan.job, one.plan.start): one for one in orders}
        problems = []
        for key in before.keys() - self._orders.keys():
            if key in self._jobs and not self._goes_on(self._jobs[key]):
                self.drop(self._jobs[key], why="the manager's plan has it no longer")
        for key, order in self._orders.items():
            job = self._jobs.get(key)
            if job is None:
                continue
            if job.static_runs or job.number != order.number or job.layout.digest != order.plan.digest:
                self.drop(job, why="it is another one in the manager's plan")
                continue
            problem = plan_problem(order.plan, len(job.layout.chunks))
            try:
                if not problem:
                    self._place(job, order.plan.runs)
            except EngineError as error:
                problem = str(error)
            if problem:
                problems.append(f"job {job.name:.60}: {problem}")
        return tuple(problems)

    def _goes_on(self, job: ServedJob) -> bool:
        """A start that has ended hands what is here to the next start of the same job, if the plan names one."""
        for (name, start), order in self._orders.items():
            if name == job.name and start > job.start and (name, start) not in self._jobs:
                plan = order.plan
                if job.is_sum or (plan.digest, plan.members, order.number) != (
                    job.layout.digest,
                    job.members,
                    job.number,
                ):
                    return False
                _log.info("job starts again", job=name, start=start, before=job.start)
                del self._jobs[name, job.start]
                job.start = start
                job.lives.clear()
                job.passed.clear()
                self._jobs[name, start] = job
                return True
        return False

    # --- ends

    def drop(self, job: ServedJob, *, why: str) -> None:
        """Ends a job's lanes and lets its chunks go."""
        self._engine.drop_job(job.engine_number)
        del self._jobs[job.name, job.start], self._by_number[job.engine_number]
        _log.info("job let go", job=job.name, start=job.start, why=why)

    def drop_idle(self) -> None:
        """Lets go of static jobs that no lane has held for `keep_s`; when others end, their manager says.

        Those without an optimizer go at once: nothing of theirs is here.
        """
        now_s = self._now_s()
        for job in self:
            if not job.static_runs or self._has_members(job):
                job.idle_since_s = None
                continue
            if job.idle_since_s is None:
                job.idle_since_s = now_s
            if job.is_sum or now_s - job.idle_since_s >= self._keep_s:
                self.drop(job, why="it has no member any more")

    def stats(self, job: ServedJob) -> AggregatorStats:
        """The engine's counters of a job."""
        return self._engine.stats(job.engine_number)

    def version(self, job: ServedJob) -> int | None:
        """The lowest version of its chunks here; None: one has none."""
        return self.stats(job).serves

    def next_owners(self) -> Mapping[tuple[JobId, int], tuple[ServedJob, AggregatorAddress]]:
        """To whom chunks move from here: address, by job and the other one's number."""
        found = {}
        for key, order in self._orders.items():
            job = self._jobs.get(key)
            for run in order.plan.runs if job is not None else ():
                if run.owner != order.number or run.next_owner is None:
                    continue
                address = order.plan.address(run.next_owner)
                if address is not None and not address.is_away and job is not None:
                    found[key, run.next_owner] = (job, address)
        return found


def _layout_of(request: Request) -> Layout:
    problem = rule_problem(request.tensors, request.rule)
    if problem:
        raise NotAdmittedError(problem)
    try:
        return make_layout(request.tensors)
    except ConfigError as error:
        raise NotAdmittedError(str(error)) from error


def _check_order(order: Order, request: Request, layout: Layout) -> None:
    plan = order.plan
    if layout.digest != plan.digest:
        # Once a member that is right has come, `_check_same` says which tensor differs.
        raise NotAdmittedError(
            f"job {plan.job:.60}: the model is another one than the job declared; start all ranks anew", is_final=False
        )
    if request.number != order.number:
        raise NotAdmittedError(
            f"job {plan.job:.60}: this Aggregator is number {order.number}, not {request.number}", is_final=False
        )
    if request.members != plan.members:
        raise NotAdmittedError(f"job {plan.job:.60} has {plan.members} members, not {request.members}")
    problem = plan_problem(plan, len(layout.chunks))
    if problem:
        raise NotAdmittedError(f"job {plan.job:.60}: {problem}", is_final=False)


def _check_same(job: ServedJob, request: Request) -> None:
    """A job is one thing to all its members."""
    them = f"rank {job.first_rank}"
    ours, theirs = update_of(request.tensors, request.rule), update_of(job.layout.tensors, job.rule)
    if ours and theirs and ours != theirs:
        raise NotAdmittedError(f"update is '{ours}' here and '{theirs}' at {them}; let all ranks say the same")
    difference = first_difference(request.tensors, job.layout.tensors, them=them)
    if difference:
        raise NotAdmittedError(f"the model is another one than {them}'s: {difference}")
    if isinstance(request, Attach) and request.number != job.number:
        raise NotAdmittedError(_other_number(job, request, them))
    for word, here, there in (
        ("rule", request.rule, job.rule),
        ("number of members", request.members, job.members),
        ("number of this Aggregator", request.number, job.number),
        ("hold", request.hold, job.hold),
    ):
        if here != there:
            raise NotAdmittedError(f"the {word} is {here} here and {there} at {them}; let all ranks say the same")
    if isinstance(request, Attach) and request.runs != job.static_runs:
        raise NotAdmittedError(
            f"the Aggregators are other ones than {them}'s; name the same in the same order on all ranks"
        )


def _other_number(job: ServedJob, attach: Attach, them: str) -> str:
    if job.lives.get(attach.rank) == attach.life:
        first, second = sorted((job.number + 1, attach.number + 1))
        return f"one Aggregator is named twice, as number {first} and {second} of the list; name each by one address"
    return (
        f"this Aggregator is number {attach.number + 1} of the list here and {job.number + 1} at {them}; name each "
        "once, in the same order on all ranks"
    )
