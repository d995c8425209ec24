"""`farside agent`: starts a node agent from its settings, runs it, and ends it.

It ends at SIGTERM or SIGINT. Tasks run on then, and the next agent finds them; with ``on_stop = "end"`` (a sandbox)
they are stopped first. Killed without warning it leaves only socket files, and tasks as they were.
"""

import asyncio
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

from msgspec.structs import replace

from farside import admin
from farside.agent import messages as m
from farside.agent.metrics import agent_metrics
from farside.agent.power_off import power_off, why_not
from farside.agent.relay import Relay
from farside.agent.rest.end_rest import hand_of
from farside.agent.rest.load_average import is_loaded
from farside.agent.run.account import account_of, users_here
from farside.agent.run.containment import cgroup_root
from farside.agent.run.fence import HeardRecord
from farside.agent.run.fork_server import ForkServer
from farside.agent.run.hook import hooks_of
from farside.agent.run.ledger import Command, Task, key_of, over_below, state_of
from farside.agent.run.probe import Prober
from farside.agent.run.runner import Policy, Runner
from farside.agent.run.task_folder import Recipe, folder_name
from farside.agent.run.task_memory import TaskMemory
from farside.agent.sense.load import LoadSense
from farside.agent.sense.node import NodeSense, RunningTask, cpus, healthy, read_beside
from farside.agent.sense.rack import RackSense
from farside.agent.service.aggregator import AggregatorService, relay_key
from farside.agent.service.borrower import BorrowerService
from farside.agent.service.donor import DonorSense
from farside.agent.service.executor import ExecutorService
from farside.agent.service.rest import RestService
from farside.agent.service.service import NodeService, NodeServices
from farside.agent.service.swap import SwapService
from farside.agent.session import Node, Session
from farside.agent.startup import (
    borrowers_of,
    check_fence,
    gpus_of,
    manager_address,
    memory_rules,
    spill_dir_of,
    why_unfenced,
)
from farside.agent.status import AgentStatus, GpuHolder
from farside.clock import Clock, RealClock
from farside.config import AgentConfig
from farside.config.check import names_in
from farside.ending import on_end_signals
from farside.errors import ConfigError, FarsideError
from farside.installed import version_of
from farside.kernel_file import boot_id
from farside.log import get_log, start_logging
from farside.notify import notify_systemd, watchdog_period_s
from farside.scrape import registry_of, serve_metrics
from farside.whole_file import lock_file

PUBLISH_EVERY_S = 1.0
"""How old the picture may be that Prometheus gets."""
# For tasks of an agent that ends with them (a sandbox): less than the limit below, in which they must be gone.
END_GRACE_S = 2.0
END_LIMIT_S = 6.0
IDENTITY_BYTES_MAX = 64
FENCE, RACK = "manager.heard", "rack"  # in state_dir

_log = get_log("agent")


class _Ended(Exception):
    """Leaves the task group, so that what runs in it is cancelled."""


def run(config: AgentConfig) -> int:
    """Run an agent until it is asked to stop; returns the process's exit code.

    Raises:
        ConfigError: a setting, the token file or the state folder cannot be used.
        Unavailable: memory use cannot be read here.
    """
    start_logging(config.log_level)
    _keep_inherited()
    agent = Agent(config, clock=RealClock())
    asyncio.run(agent.run())
    return 0


class Agent:
    """All parts of one node agent, put together."""

    def __init__(self, config: AgentConfig, *, clock: Clock) -> None:
        """Read the token, the known tasks and the node; connect nothing yet."""
        self.node = config.node or socket.gethostname()
        self.ready = asyncio.Event()
        self._config, self._clock = config, clock
        self._manager = manager_address(config)
        self._hooks = hooks_of(config.prolog, config.epilog, user=config.hook_user, limit_s=config.hook_limit_s)
        self._users = users_here(run_as=config.run_as, allowed=names_in(config.users))
        self._gpus = gpus_of(config)
        self._cgroup = cgroup_root(config.cgroup)
        self._unfenced = why_unfenced(config, self._cgroup, self._gpus)
        self._lock = self._claim_state()
        self._identity = _identity_in(self._lock)
        self._fence = self._open_fence()
        self._fork_server = ForkServer()
        self.runner = self._open_runner()
        rules = memory_rules(config)
        self._donor = DonorSense(
            _given(config.daemon_socket), control=config.donor_control, clock=clock, rules=rules,
        )  # fmt: skip
        self._swap = SwapService(rules, borrowers_of(config), root=config.proc_root.parent, clock=clock)
        self.sense = NodeSense(
            gpus=self._gpus,
            proc_root=config.proc_root,
            rdma_errors_per_hour=config.rdma_errors_per_hour,
            total_bytes=config.memory_total_bytes,
            reserve_bytes=config.memory_reserve_bytes,
            donor=self._donor,
            may_give_swap=self._cgroup is not None and self._cgroup.limits_swap,
            rack=RackSense(config.rack, config.state_dir / RACK, now_s=time.monotonic),
            tasks=self._running_tasks,
        )
        self._loads = LoadSense(
            self._gpus, lambda: self.runner.ledger.tasks.values(), self.runner.gpu_uuids_of, clock=clock
        )
        self._limits_memory = self._cgroup is not None and self._cgroup.limits_memory
        problem = self._task_memory.problem(is_limited=self._limits_memory)
        if problem:
            raise ConfigError(f"task_memory: is limit; {problem}", hint='task_memory = "warn"')
        self._borrower = BorrowerService(
            _given(config.peers_file), swap=lambda: self.sense.latest.swap, clock=clock,
            sockets=borrowers_of(config),
        )  # fmt: skip
        self._aggregator = self._make_aggregator()
        self._executor = ExecutorService(
            _given(config.executor_socket), _given(config.executor_admin_socket),
            spill_dir=spill_dir_of(config), supervisors=self._supervisors, proc=config.proc_root,
        )  # fmt: skip
        self._rest = self._make_rest()
        services: list[NodeService] = [self._donor, self._borrower, self._aggregator, self._executor, self._swap]
        if self._rest.is_needed:
            services.append(self._rest)
        self.services = NodeServices(services)
        self.session = self._make_session()
        self._told = asyncio.Event()
        self._latest = self._status()

    async def run(self) -> None:
        """Works until ``stop`` is called."""
        config = self._config
        async with AsyncExitStack() as stack:
            # Called in the reverse order: the lock goes last, when nothing of this agent works in the folder any more.
            stack.callback(os.close, self._lock)
            stack.callback(self._fence.close)
            stack.callback(self._gpus.close)
            stack.callback(self._fork_server.close)
            stack.push_async_callback(self.services.close)
            stack.enter_context(on_end_signals(self.stop))
            if config.metrics_listen:
                registry = registry_of(lambda: agent_metrics(self._latest, names_jobs=config.metrics_jobs))
                scraped = await serve_metrics(config.metrics_listen, registry)
                stack.callback(scraped.close)  # not waited for: a scraper that hangs must not hold up the end
            handlers: Mapping[str, admin.Handler] = {
                "status": self._on_status,
                "forget_generation": self._on_forget_generation,
            }
            async with admin.serve(config.admin_socket, handlers):
                await self._work()

    def stop(self) -> None:
        """Ends the agent."""
        self._told.set()

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                await self.sense.read()  # HELLO has the donor in it: a node that says it has none would lose borrowers
                await self._aggregator.look()
                await self._executor.look()
                await self._rest.begin()
                group.create_task(self.runner.run())
                group.create_task(self._keep_publishing())
                group.create_task(self._loads.run())
                group.create_task(self._aggregator.run())
                group.create_task(self._executor.run())
                group.create_task(self._swap.run())
                group.create_task(self._rest.run())
                session = group.create_task(self.session.run())
                self._say_ready()
                await self._told.wait()
                notify_systemd("STOPPING=1")
                if self._config.on_stop == "end":
                    await self._end_tasks()
                # Only now: until here the session can still report the ends of tasks.
                session.cancel()
                # A task group ends its tasks only when its body fails.
                raise _Ended
        except* _Ended:
            pass

    def _say_ready(self) -> None:
        live = sum(task.is_live for task in self.runner.ledger.tasks.values())
        held = "cgroup" if self._cgroup is not None else "process tree"
        _log.info("agent ready", node=self.node, gpus=len(self._gpus.read()), tasks=live, containment=held)
        if self._cgroup is None:
            _log.warning("no cgroup v2 that this agent may write: tasks have no limits on memory and CPUs")
        if self._gpus.unseen:
            _log.error("GPUs of this node are not found, and it joins without them", why=self._gpus.unseen)
        if self._unfenced and self._gpus.read():
            _log.warning("tasks can open GPUs that are not theirs", why=self._unfenced)
        if self._config.run_as == "starter":
            _log.warning("every task runs as the user of this agent, whoever submitted it", uid=os.geteuid())
        notify_systemd("READY=1")
        self.ready.set()

    async def _end_tasks(self) -> None:
        self.runner.end_all("the node is shutting down", END_GRACE_S)
        try:
            async with asyncio.timeout(END_LIMIT_S):
                while self.runner.has_live_tasks:
                    self.runner.look()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            _log.error("tasks do not end", tasks=sum(task.is_live for task in self.runner.ledger.tasks.values()))

    # ---- what the session asks

    def _hello(self) -> m.Hello:
        return m.Hello(
            node=self.node,
            boot_id=boot_id(self._config.proc_root),
            incarnation=self._incarnation,
            version=version_of("farside"),
            cpus=cpus(),
            memory_bytes=self.sense.total_bytes,
            tasks=self.runner.states[: m.TASKS_MAX],
            can=self._can(),
            agent=self._identity,
            users=self._users,
            fence_s=self._config.fence_s,
            features=tuple(sorted(set(names_in(self._config.features)))),
            tells_load=self._gpus.tells_load,
            extends_limits=True,
            task_memory=self._task_memory.told(is_limited=self._limits_memory),
            rdma_domain=self._config.rdma_domain,
            at_s=time.time(),
            services=self.services.facts(),
            **m.fields_of(m.ChangingFacts, self.sense.latest),
        )

    def _can(self) -> tuple[str, ...]:
        maybe = {m.CAN_DONORS: self._borrower.peers is not None, m.CAN_POWER_OFF: bool(self._config.power_off)}
        return (m.CAN_PROBE, m.CAN_LENDING, *(what for what, is_so in maybe.items() if is_so), *self.services.can)

    async def _power_off(self, order: m.PowerOff) -> None:
        drained = self.sense.latest.drained
        # A donor that still has slabs out is not closed yet, whatever it was told.
        closed_by = 0 if drained is None or drained.slabs else drained.number
        has_tasks = self.runner.has_live_tasks
        objection = why_not(order, closed_by=closed_by, has_tasks=has_tasks, holding=self.services.holding())
        if objection or not self._config.power_off:
            _log.warning("this node is not shut down", why=objection or "power_off is empty")
            return
        _log.info("node shuts down for the manager", program=self._config.power_off)
        await power_off(self._config.power_off)

    async def _read(self) -> m.Reading:
        reading = await read_beside(self.sense.read, self._borrower.look, is_urgent=lambda: self._donor.is_recalling)
        facts, holding = self.services.facts(), self.services.holding()
        unfit = reading.unfit or self.services.unfit()[: m.CAUSE_CHARS_MAX]
        return replace(reading, services=facts, holding=holding, loads=self._loads.read(), unfit=unfit)

    def _welcomed(self, generation: int, is_proved: bool) -> None:
        if is_proved:
            self.services.led_by(generation)
        before = self.runner.ledger.generation
        if is_proved and generation < before:
            _log.warning("this node forgets a generation that no manager proved", forgotten=before, obeys=generation)
        try:
            self.runner.welcomed(generation, is_proved=is_proved)
        except OSError as error:  # the disk is full: a node without its ledger still reports and stops tasks
            _log.error("the manager's generation cannot be recorded", why=error.strerror)

    def _heard(self, at_s: float) -> None:
        try:
            self._fence.heard(at_s)
        except OSError as error:  # then tasks end too early, and not too late
            _log.error("when the manager was heard cannot be recorded", why=error.strerror)

    def _take(self, command: Command, is_proved: bool) -> None:
        if isinstance(command, m.Start):
            self._rest.come()
            command = self._with_services(command)
            command = replace(command, spec=self._task_memory.limited(command.spec))
        try:
            self.runner.take(command, is_proved=is_proved)
        except OSError as error:
            # Nothing was done; the manager hears of it where it waits for an answer, and may send it elsewhere.
            _log.error("a command cannot be recorded", task=command.task_id, why=error.strerror)
            if isinstance(command, m.Start):
                cause = f"this node cannot record the task: {error.strerror}"
                self.session.tell(state_of(key_of(command), "exited", self.sense.latest.at_s, cause))

    def _make_rest(self) -> RestService:
        return RestService(hand_of(self._config), is_idle=self._is_idle, clock=self._clock)

    def _is_idle(self) -> bool:
        return not (self.runner.has_live_tasks or self.services.holding() or is_loaded(self._config.proc_root))

    def _with_services(self, command: m.Start) -> m.Start:
        """A START with what its processes need to reach the services of this node."""
        env = {**command.spec.env, **self.services.variables(command)}
        return replace(command, spec=replace(command.spec, env=env))

    # ---- status

    async def _on_status(self, _: Mapping[str, object]) -> object:
        return self._status()

    async def _on_forget_generation(self, _: Mapping[str, object]) -> object:
        forgotten = self.runner.ledger.generation
        try:
            self.runner.forget_generation()
        except OSError as error:
            text = f"state_dir {self._config.state_dir}: {error.strerror}; nothing was forgotten"
            raise FarsideError(text) from error
        self.services.led_by(0)
        return {"forgotten": forgotten}

    async def _keep_publishing(self) -> None:
        while True:
            self._latest = self._status()
            # Without a manager the last list of donors counts, however old it is.
            if self.session.is_connected:
                self._borrower.refresh()
            if watchdog_period_s() > 0:
                notify_systemd("WATCHDOG=1")  # from the loop itself: systemd restarts an agent that hangs
            await self._clock.sleep_until_s(self._clock.now_s() + PUBLISH_EVERY_S)

    def _status(self) -> AgentStatus:
        latest, states, peers = self.sense.latest, self.runner.states, self._borrower.peers
        holders = tuple(_holders(self.runner.ledger.tasks.values()))
        return AgentStatus(
            kind="agent",
            node=self.node,
            pid=os.getpid(),
            manager=self._config.manager,
            connected=self.session.is_connected,
            is_manager_proved=self.session.is_proved,
            problem=self.session.last_problem,
            generation=self.runner.ledger.generation,
            run_as=self._config.run_as,
            containment="cgroup" if self._cgroup is not None else "process tree",
            memory_bytes=self.sense.total_bytes,
            gpu_fence=self._unfenced or "on",
            headroom_bytes=latest.headroom_bytes,
            donor=latest.donor,
            swap=latest.swap,
            peers_file=os.fspath(self._config.peers_file) if peers is not None else "",
            peers=peers.donors if peers is not None else 0,
            peers_problem=peers.problem if peers is not None else "",
            services=self.services.metrics(),
            service_faults=dict(self.services.faults),
            psi=latest.psi,
            gpus=latest.gpus,
            gpus_unseen=self._gpus.unseen,
            gpus_in_use=_tasks_by_gpu(holders),
            gpu_holders=holders,
            tasks=states,
            task_counts=Counter(state.state for state in states),
        )

    # ---- parts

    def _claim_state(self) -> int:
        """Descriptor that locks the state folder: two agents in one folder would both start the same tasks."""
        folder = self._config.state_dir
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Held until the agent ends, and let go by the kernel if it is killed.
            fd = lock_file(folder / "agent.lock")
        except OSError as error:
            raise ConfigError(f"state_dir {folder}: {error.strerror}") from error
        if fd is None:
            raise ConfigError(f"state_dir {folder}: another agent works in it", hint="end that agent")
        return fd

    def _open_fence(self) -> HeardRecord:
        config = self._config
        check_fence(config)
        try:
            return HeardRecord(config.state_dir / FENCE, config.fence_s)
        except OSError as error:
            raise ConfigError(f"state_dir {config.state_dir}: {error.strerror}") from error

    def _open_runner(self) -> Runner:
        config = self._config
        policy = Policy(
            run_as=config.run_as,
            users=frozenset(names_in(config.users)),
            cgroup=self._cgroup,
            devices=lambda: healthy(self.sense.latest.gpus),
            has_swap=lambda: self.sense.latest.swap is not None,
            processes=config.task_processes,
            hooks=self._hooks,
            fence=os.fspath(config.state_dir / FENCE),
            gpu_files=None if self._unfenced else self._gpus.files,
            gpu_uuids=self._gpus.uuids,
        )
        try:
            return Runner(
                config.state_dir, policy, lambda state: self.session.tell(state), fork_server=self._fork_server
            )
        except OSError as error:
            raise ConfigError(f"state_dir {config.state_dir}: {error.strerror}") from error

    @property
    def _task_memory(self) -> TaskMemory:
        """What tasks get whose jobs name no memory, with the GPUs that there are now."""
        config = self._config
        return TaskMemory(
            mode=config.task_memory,
            bytes_per_device=config.task_memory_bytes,
            jobs_bytes=self.sense.jobs_bytes,
            devices=sum(len(gpu.devices) for gpu in self.sense.latest.gpus),
        )

    def _running_tasks(self) -> tuple[RunningTask, ...]:
        memory, known = self._task_memory, self.runner.ledger.tasks
        return tuple(
            RunningTask(
                supervisor_pid=pid,
                limit_bytes=known[key].memory_bytes,
                cgroup=_cgroup_of(self.runner.recipe(key)),
                name=folder_name(key),
                watched_bytes=memory.watched_bytes(
                    limit_bytes=known[key].memory_bytes, devices=len(known[key].devices)
                ),
            )
            for key, pid in self.runner.supervisor_pids().items()
        )

    def _supervisors(self) -> dict[tuple[str, int, int], int]:
        """The supervisor of each task that is here, by job, rank and start."""
        found = {}
        for (task_id, start), pid in self.runner.supervisor_pids().items():
            job, _, rank = task_id.rpartition(".")
            found[job, int(rank), start] = pid
        return found

    def _make_aggregator(self) -> AggregatorService:
        config = self._config
        try:
            key = relay_key(config.state_dir)
        except OSError as error:
            raise ConfigError(f"state_dir {config.state_dir}: {error.strerror}") from error
        path = _given(config.aggregation_socket)
        relay = None if path is None else Relay(path, key, lambda told: self.session.tell_of_job(told))
        allowed = frozenset(names_in(config.users))
        return AggregatorService(
            _given(config.aggregator_socket),
            relay,
            key=key,
            uid_of=lambda user: account_of(user, run_as=config.run_as, allowed=allowed).uid,
            hasten=lambda: self.session.report_soon(),
            clock=self._clock,
        )

    def _make_session(self) -> Session:
        config = self._config
        self._incarnation = secrets.token_hex(8)
        return Session(
            self._manager,
            Node(
                hello=self._hello,
                read=self._read,
                take=self._take,
                probe=Prober(run_as=config.run_as, allowed=self.runner.policy.users).answer,
                donors=self._borrower.borrow_from,
                lending=self._donor.lend,
                service=self.services.obey,
                power_off=self._power_off,
                seen_generation=lambda is_proved: over_below(self.runner.ledger, is_proved=is_proved),
                welcomed=self._welcomed,
                heard=self._heard,
                hurries=lambda: self._donor.is_recalling,
            ),
            clock=self._clock,
            rng=Random(),
            period_s=config.report_period_s,
            reconnect_s=config.reconnect_s,
        )


def _keep_inherited() -> None:
    """Keep descriptors inherited from systemd or a shell from being passed on to jobs."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the one that listed them
                os.set_inheritable(int(name), False)


def _identity_in(lock: int) -> str:
    """Identity of this state folder's agents, apart from others of the same name; made when there is none yet."""
    kept = os.pread(lock, IDENTITY_BYTES_MAX, 0).decode(errors="replace").strip()
    if kept:
        return kept
    made = secrets.token_hex(8)
    with suppress(OSError):  # the disk is full: the next agent makes another one, and waits until we are forgotten
        os.pwrite(lock, made.encode(), 0)
    return made


def _holders(tasks: Iterable[Task]) -> Iterator[GpuHolder]:
    """Which task has what of which GPU."""
    for task in tasks:
        for share in task.shares:
            job, name = m.job_of_task(task.state.task_id), folder_name(share.holder)
            yield GpuHolder(gpu=share.gpu, part=share.part, task=name, job=job, user=task.user)


def _tasks_by_gpu(holders: Iterable[GpuHolder]) -> dict[int, str]:
    found: dict[int, str] = {}
    for held in holders:
        found[held.gpu] = ", ".join(filter(None, (found.get(held.gpu), held.task)))
    return found


def _cgroup_of(recipe: Recipe | None) -> Path | None:
    """A task's own cgroup; None: it has none."""
    return Path(recipe.cgroup) if recipe is not None and recipe.cgroup else None


def _given(path: Path) -> Path | None:
    """A path of the settings; None where it is empty."""
    return path if path.is_absolute() else None
