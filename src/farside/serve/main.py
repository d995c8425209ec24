"""`farside serve run`: a deployment on this machine or on a manager's nodes, from its file to its end."""

import asyncio
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from farside import admin
from farside.agent.serving.describe import describe_models
from farside.agent.serving.model import runtimes
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.catalog import DRIVERS, find_driver
from farside.agent.serving.partition.cpu import CAPACITY_PCT, CpuDriver
from farside.agent.serving.partition.gpu import GpuDriver
from farside.agent.serving.partition.green import GreenDriver
from farside.agent.serving.partition.mps import MpsDriver
from farside.agent.serving.partition.policy import Device, Driver
from farside.agent.serving.partition.whole import WholeDriver
from farside.agent.serving.priority import go_first, go_with_others
from farside.agent.serving.remote import Address
from farside.client.manager_client import ManagerAddress
from farside.daemon.control.keys import KeyRing, read_keys
from farside.ending import on_end_signals
from farside.errors import ConfigError, Unavailable
from farside.installed import version_of
from farside.listen import allow_many_connections
from farside.log import get_log, start_logging
from farside.notify import notify_systemd, watchdog_period_s
from farside.own_task import beside
from farside.scheduler.manager.garbage_collection import keep_aside
from farside.scheduler.sharing.glet.check import check
from farside.scheduler.sharing.glet.plan import Glet, Plan
from farside.scheduler.sharing.glet.profile import WHOLE_PCT, DeviceProfile, ModelProfile
from farside.scrape import serve_metrics
from farside.serve.controller import Controller, first_plan, wanted_of
from farside.serve.deployment import Deployment, check_for_machine, check_for_manager, profiles_of
from farside.serve.door_server import DoorServer
from farside.serve.fleet import Fleet
from farside.serve.http_door import open_http
from farside.serve.large.message import is_needed
from farside.serve.lease.front_state import FrontState, StateFile
from farside.serve.lease.keeper import LeaseKeeper, LeaseSettings
from farside.serve.lease.report import report_of
from farside.serve.lease.rules import LeaseRules
from farside.serve.lease.terms import job_of
from farside.serve.metrics import serving_registry
from farside.serve.planner import Planner, sizes_of
from farside.serve.pool import Pool, Turns
from farside.serve.profile.folder import Fingerprint, profile_problem, read_header
from farside.serve.profile.profiler import fingerprint
from farside.serve.scenario import RATE_MAX
from farside.serve.service import Service
from farside.serve.site import LocalSite, OwnDevices, RemoteSite, Site
from farside.serve.status import GletStatus, LeaseStatus, ModelStatus, ServeStatus
from farside.serve.table import read_tables
from farside.tls import TlsFiles, server_tls

_GRACE_S = 2.0
_RATIOS_LEAST = 10
_PLAN_BYTES_MAX = 1 << 24
_FRONT_CHARS_MAX = 128

_log = get_log("serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grounds:
    """A deployment with what is known of its models, and the devices.

    ``plan`` is the one that was given; None: plans are made as rates change. ``driver`` is None where workers cut.
    ``manager``: whose nodes it is on; None: this machine. ``profiled``: what the profile is of; None: not said.
    """

    deployment: Deployment
    models: Mapping[str, ModelFile]
    profiles: Mapping[str, ModelProfile]
    device: DeviceProfile
    driver: Driver | None
    driver_name: str
    devices: Sequence[Device]
    plan: Plan | None = None
    manager: ManagerAddress | None = None
    profiled: Fingerprint | None = None

    @property
    def gpus(self) -> int:
        """Devices that may be used."""
        most = self.deployment.gpus_max or len(self.devices)
        return most if self.manager is not None else min(len(self.devices), most)


def run(
    deployment: Deployment, plan_file: Path | None, manager: ManagerAddress | None = None, *, log_level: str = "info",
    is_check: bool = False,
) -> int:  # fmt: skip
    """Serves until it is asked to end; the exit code. ``manager``: whose nodes have the devices; None: this machine.

    With ``is_check`` it looks whether the deployment would start, beside the one that runs: files, models, profile and
    rates, and neither addresses nor groups, which that one has.

    Raises:
        FarsideError: Something is wrong with the deployment, or could not be started.
    """
    start_logging(log_level)
    if is_check:  # a unit's Nice= is for the front, beside which this loads all models
        go_with_others()
    allow_many_connections()
    asyncio.run((_check_start if is_check else _run)(deployment, plan_file, manager))
    return 0


async def _check_start(deployment: Deployment, plan_file: Path | None, manager: ManagerAddress | None) -> None:
    grounds = await _grounds(deployment, plan_file, manager, is_check=True)
    if deployment.is_secure:
        server_tls(TlsFiles(cert=deployment.tls_cert, key=deployment.tls_key))
    if manager is not None:
        read_keys(deployment.file.parent / deployment.terms.key_file)
    if grounds.plan is None:
        planner = Planner(grounds.profiles, grounds.device)
        try:
            await first_plan(planner, wanted_of(deployment.rates), grounds.gpus)
        finally:
            await planner.close()


async def _run(deployment: Deployment, plan_file: Path | None, manager: ManagerAddress | None) -> None:
    grounds = await _grounds(deployment, plan_file, manager)
    go_first()
    ended = asyncio.Event()
    with on_end_signals(ended.set):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(beside(_tell_of_life, _task_failed))
            await _serve(grounds, stack, ended)
            if not ended.is_set():
                _log.info("ready", http=deployment.http, grpc=deployment.grpc, models=", ".join(grounds.models))
                notify_systemd("READY=1")
            await ended.wait()
            notify_systemd("STOPPING=1")


async def _tell_of_life() -> None:
    """From the loop that serves: systemd kills and restarts a front that hangs, whose leases would stay idle."""
    while (period_s := watchdog_period_s()) > 0:
        notify_systemd("WATCHDOG=1")
        await asyncio.sleep(period_s)


async def _grounds(
    deployment: Deployment, plan_file: Path | None, manager: ManagerAddress | None, *, is_check: bool = False
) -> _Grounds:
    if manager is not None and plan_file is not None:
        raise ConfigError("--plan and --manager exclude each other", hint="leases come and go, and plans with them")
    if manager is None:
        check_for_machine(deployment)
    else:
        check_for_manager(deployment)
    if deployment.profile is None:
        raise ConfigError(
            f"{deployment.file}: names no profile, and without latencies there is no plan",
            hint="profile = FOLDER; farside serve profile makes one",
        )
    tables = read_tables(deployment.profile)
    profiles, device = profiles_of(deployment, deployment.profile, tables.models, tables.device)
    if manager is not None:
        driver_name, driver = deployment.driver, None
    else:
        driver_name, driver = _driver_of_profile(deployment, deployment.profile) if is_check else _driver(deployment)
    if not DRIVERS[driver_name].traits.can_cut:
        device = replace(device, cuts=((WHOLE_PCT,),))
    devices = _devices(deployment, driver)
    missing = {core for one in devices for core in one.cores} - os.sched_getaffinity(0)
    if missing and manager is None:
        raise ConfigError(
            f"{deployment.file}: cpu_devices names core {min(missing)}, which this process may not use",
            hint=f"there are {', '.join(map(str, sorted(os.sched_getaffinity(0))))}",
        )
    models = {one.name: one for one in await describe_models(deployment.requests())}
    grounds = _Grounds(
        deployment=deployment, models=models, profiles=profiles, device=device, driver=driver, driver_name=driver_name,
        devices=devices, manager=manager,
    )  # fmt: skip
    grounds = replace(grounds, profiled=_check_profile(deployment.profile, grounds))
    if manager is not None and not deployment.is_on_gpus:
        _log.info("parts are of CPU cores, in place of the GPUs that are leased", driver=driver_name)
    return grounds if plan_file is None else replace(grounds, plan=_given_plan(plan_file, grounds))


def _devices(deployment: Deployment, driver: Driver | None) -> Sequence[Device]:
    """Devices that plans may have: of leases' GPUs one, which each worker takes for its own.

    Raises:
        Unavailable: There is no GPU.
    """
    if isinstance(driver, MpsDriver | GreenDriver | GpuDriver):
        return driver.devices()
    if deployment.is_on_gpus:
        return [Device()]
    cores_of = deployment.cpu_devices or (tuple(sorted(os.sched_getaffinity(0))),)
    return [Device(number=number, cores=cores) for number, cores in enumerate(cores_of)]


def _check_profile(folder: Path, grounds: _Grounds) -> Fingerprint | None:
    """What a profile is of, if of these devices and models; tables without profile.json are taken at their word.

    A device elsewhere has to be what the profile says, and the frameworks there have to have its versions, as workers
    check.

    Raises:
        ConfigError: It is of others.
    """
    header = read_header(folder)
    if header is None:
        _log.warning("the tables do not say of which device and files they are", profile=str(folder))
        return None
    deployment, driver_name = grounds.deployment, grounds.driver_name
    frameworks = sorted({model.framework for model in grounds.models.values()})
    for device in grounds.devices:
        if grounds.driver is not None:
            ours = fingerprint(driver_name, grounds.driver, device, frameworks)
        else:
            ours = Fingerprint(
                driver=driver_name, name=header.device.name, cores=device.cores,
                capacity_pct=deployment.capacity_pct if driver_name == "cpu" else WHOLE_PCT,
                memory_mb=header.device.memory_mb, runtimes=runtimes(frameworks),
            )  # fmt: skip
        problem = profile_problem(folder, header, ours, grounds.models.values())
        if problem:
            capacity = deployment.capacity_pct
            option = f" --capacity {capacity}" if driver_name == "cpu" and capacity != CAPACITY_PCT else ""
            hint = f"farside serve profile{option} measures anew, into an empty folder"
            raise ConfigError(f"{deployment.file}: {problem}", hint=hint)
    return header.device


def _driver(deployment: Deployment) -> tuple[str, Driver]:
    if deployment.is_on_gpus:
        try:
            return find_driver(deployment.driver)
        except Unavailable as error:
            raise ConfigError(f"{deployment.file}: device = {deployment.driver!r}: {error}") from error
    cpu = CpuDriver(deployment.capacity_pct)
    if deployment.driver == "whole":
        return "whole", WholeDriver()
    problem = cpu.capabilities().problem
    if not problem:
        return "cpu", cpu
    if deployment.driver == "cpu":
        raise ConfigError(f"{deployment.file}: device = 'cpu': {problem}")
    _check_whole(deployment, problem)
    _log.warning("devices are not cut: each serves as a whole", why=problem)
    return "whole", WholeDriver()


def _check_whole(deployment: Deployment, problem: str) -> None:
    """Whether the file has nothing that only cores which can be cut have.

    Raises:
        ConfigError: It has.
    """
    if deployment.prepare_pct != WHOLE_PCT:
        raise ConfigError(f"{deployment.file}: prepare_pct holds executors to a part of the cores: {problem}")
    if deployment.capacity_pct != CAPACITY_PCT:
        raise ConfigError(f"{deployment.file}: capacity_pct is a part of the cores: {problem}")


def _driver_of_profile(deployment: Deployment, profile: Path) -> tuple[str, Driver]:
    """The driver that a start is to take, without a try: groups are the running front's, and a check is not in them."""
    if deployment.is_on_gpus:
        return _driver(deployment)
    header = read_header(profile)
    is_whole = deployment.driver == "auto" and header is not None and header.device.driver == "whole"
    if is_whole:
        _check_whole(deployment, "the profile is of whole devices")
    if is_whole or deployment.driver == "whole":
        return "whole", WholeDriver()
    return "cpu", CpuDriver(deployment.capacity_pct)


def _given_plan(path: Path, grounds: _Grounds) -> Plan:
    """The plan of a file: a list of glets, as `farside serve plan --json` writes it.

    Raises:
        ConfigError: It can't be read, or the checker finds something.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_PLAN_BYTES_MAX)
        plan = Plan(glets=msgspec.json.decode(content, type=tuple[Glet, ...]))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a file with a plan") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        hint = "give a list of glets, such as the key plan of an entry of `farside serve plan --json`"
        raise ConfigError(f"{path}: is no plan ({error})", hint=hint) from error
    unknown = plan.served().keys() - grounds.profiles.keys()
    lacking = grounds.profiles.keys() - plan.served().keys()
    if unknown or lacking:
        what = f"serves {min(unknown)}, which is no model" if unknown else f"does not serve {min(lacking)}"
        raise ConfigError(f"{path}: {what} of {grounds.deployment.file}", hint="plan for the same models")
    found = check(plan, plan.served(), grounds.profiles, grounds.device, grounds.gpus, with_interference=True)
    if found:
        one = found[0]
        raise ConfigError(f"{path}: {one.where}: {one.what} ({one.rule})", hint="docs/serving.md has the rules")
    return plan


async def _serve(grounds: _Grounds, stack: AsyncExitStack, ended: asyncio.Event) -> None:
    """Starts everything; ``stack`` ends it, doors first. Waits for a manager that is away, unless ``ended`` is set."""
    deployment, loop = grounds.deployment, asyncio.get_running_loop()
    slo_s = {name: model.slo_ms / 1000 for name, model in deployment.models.items()}
    sizes = partial(sizes_of, grounds.profiles, grounds.device)
    pool = Pool(loop, grounds.models, slo_s, lambda: time.time_ns() // 1_000_000)
    service = Service(version_of("farside"), grounds.models, slo_s, pool, deployment.tokens)
    stack.callback(service.large.close)
    # 1. Files and rates come first: one that is wrong ends the start before anything listens.
    state = StateFile(deployment.admin_socket.with_name(f"{deployment.admin_socket.name}.state"), deployment.name)
    keeper, before = _keeper(grounds, state) if grounds.manager is not None else (None, None)
    planner = Planner(grounds.profiles, grounds.device) if grounds.plan is None else None
    found: Plan | None = None
    if planner is not None:
        stack.push_async_callback(planner.close)
        if before is None:
            found = await first_plan(planner, wanted_of(deployment.rates), grounds.gpus)
    # 2. Then addresses: one that is taken ends the start before leases are claimed, which may be another front's.
    told: _Told | None = None

    async def status(_: Mapping[str, object]) -> ServeStatus:
        if told is None:
            waits = f" and waits for its manager: {keeper.away}" if keeper is not None and keeper.away else ""
            raise Unavailable(f"{deployment.name} is starting{waits}")
        return told.status()

    doors = _open_doors(deployment, service, stack)
    if deployment.metrics:
        registry = serving_registry(service, lambda: _starting(grounds, keeper) if told is None else told.status())
        stack.callback((await serve_metrics(deployment.metrics, registry)).close)
    await stack.enter_async_context(admin.serve(deployment.admin_socket, {"status": status}))
    # 3. Then the devices, and what serves on them. Until then clients of leases hear that nothing does, also while the
    # manager does not answer.
    has_started = asyncio.Event()
    async with _ending_first(doors, stack):
        if keeper is not None:
            await _start_doors(doors, service)
            if not await keeper.claim(ended):
                return
            stack.push_async_callback(_end_leases, keeper, state, has_started, before)
        own = {} if grounds.driver is None else _own_sites(grounds.driver, grounds.devices)
        fleet = Fleet(
            own if keeper is None else keeper.sites, grounds.models, sizes, pool, longest_s=max(slo_s.values()),
            prepare_s=deployment.prepare_s, prepare_pct=deployment.prepare_pct,
        )  # fmt: skip
        stack.push_async_callback(fleet.close)
        controller = _controller(grounds, fleet, pool, planner, keeper, state, before)
        stack.push_async_callback(controller.close)
        told = _Told(grounds, fleet, controller, pool, keeper)
        if keeper is not None:
            keeper.serves(lambda: fleet.in_use, fleet.serves, lambda: report_of(_front(deployment), told.status()))
            await stack.enter_async_context(beside(keeper.run, _task_failed))
        if before is None or not await controller.resume(before.plan):
            await controller.start(grounds.plan, found=found, own_rates=None if before is None else deployment.rates)
        await stack.enter_async_context(beside(controller.run, _task_failed))
        await stack.enter_async_context(beside(keep_aside, _task_failed))
        await _start_doors(doors, service)
        has_started.set()


@asynccontextmanager
async def _ending_first(doors: Sequence[DoorServer], stack: AsyncExitStack) -> AsyncIterator[None]:
    """Ends ``doors`` before all that ``stack`` ends, and at once where the body fails."""
    async with AsyncExitStack() as ending:
        for door in doors:
            ending.push_async_callback(door.stop, _GRACE_S)
        yield
        stack.push_async_exit(ending.pop_all())


async def _start_doors(doors: Sequence[DoorServer], service: Service) -> None:
    """Takes connections from now on, if it did not before."""
    if is_needed(service.models.values()):
        service.large.start()
    for door in doors:
        if not door.is_started:
            await door.start()


def _open_doors(deployment: Deployment, service: Service, stack: AsyncExitStack) -> Sequence[DoorServer]:
    """Doors that listen, and take no connections before they are started."""
    secure = TlsFiles(cert=deployment.tls_cert, key=deployment.tls_key) if deployment.is_secure else None
    doors: list[DoorServer] = []
    if deployment.http:
        doors.append(open_http(service, deployment.http, secure))
        stack.callback(doors[-1].close)
    if deployment.grpc:
        from farside.serve.grpc_door import open_grpc

        doors.append(open_grpc(service, deployment.grpc, secure))
        stack.callback(doors[-1].close)
    return doors


async def _end_leases(
    keeper: LeaseKeeper, state: StateFile, has_started: asyncio.Event, before: FrontState | None
) -> None:
    """Gives leases back, unless a start has failed that took a plan over: what runs of that serves the next front."""
    if before is None or has_started.is_set():
        state.remove()
        await keeper.end()
    else:
        keeper.hang_up()


def _controller(
    grounds: _Grounds, fleet: Fleet, pool: Pool, planner: Planner | None, keeper: LeaseKeeper | None, state: StateFile,
    before: FrontState | None,
) -> Controller:  # fmt: skip
    def routed(plan: Plan) -> None:
        if keeper is not None:
            state.write(plan, keeper.numbers, controller.rates)

    controller = Controller(
        fleet,
        pool,
        planner,
        keeper if keeper is not None else OwnDevices(grounds.gpus, fleet.serves),
        grounds.deployment.rates if before is None else before.rates,
        on_plan=routed,
    )
    return controller


def _own_sites(driver: Driver, devices: Sequence[Device]) -> dict[int, Site]:
    return {number: LocalSite(driver, device) for number, device in enumerate(devices)}


def _front(deployment: Deployment) -> str:
    """Name of this front, which it has again after a restart, and which no front elsewhere has."""
    return f"{socket.gethostname()}:{deployment.file}"[-_FRONT_CHARS_MAX:]


def _state_folder() -> str:
    """The service's folder, which its user may write on each node (systemd/tmpfiles.d); empty where this is none."""
    return os.environ.get("STATE_DIRECTORY", "")  # systemd's StateDirectory=


def _taken_over(state: StateFile, grounds: _Grounds) -> FrontState | None:
    """What the front before has left, if it is a sound plan for these models; its GPUs have the numbers of leases."""
    found = state.read()
    if found is None:
        return None
    order = {gpu: place for place, gpu in enumerate(sorted({glet.gpu for glet in found.glets}))}
    plan = Plan(glets=tuple(msgspec.structs.replace(glet, gpu=order[glet.gpu]) for glet in found.glets))
    names = grounds.profiles.keys()
    if found.rates.keys() != names or not plan.served().keys() <= names:
        return None
    numbers = set(found.numbers.values())
    is_sane = len(numbers) == len(found.numbers) and order.keys() <= numbers and min(numbers, default=0) >= 0
    if not is_sane or not all(0 <= rate <= RATE_MAX for rate in found.rates.values()):
        return None
    faults = check(plan, plan.served(), grounds.profiles, grounds.device, max(1, plan.gpus), with_interference=True)
    return None if faults or plan.gpus > grounds.gpus else found


def _keeper(grounds: _Grounds, state: StateFile) -> tuple[LeaseKeeper, FrontState | None]:
    """The keeper of the leases, and what the front before has left."""
    deployment, terms = grounds.deployment, grounds.deployment.terms
    before = _taken_over(state, grounds)
    folder = deployment.file.parent
    keys = KeyRing(folder / terms.key_file)

    def site_of(number: int, address: Address) -> Site:
        device = grounds.devices[number % len(grounds.devices)]
        return RemoteSite(address, grounds.driver_name, device, grounds.profiled)

    assert grounds.manager is not None
    own_command = (sys.executable, "-m", "farside")
    settings = LeaseSettings(
        name=deployment.name, front=_front(deployment),
        job=job_of(deployment.name, folder, terms, own_command, deployment.capacity_pct, _state_folder()),
        rules=LeaseRules(most=grounds.gpus, spare=terms.spare_gpus, replace_before_s=terms.replace_before_s),
        keys=keys.current, site_of=site_of,
    )  # fmt: skip
    return LeaseKeeper(grounds.manager, settings, before.numbers if before is not None else None), before


def _task_failed(error: Exception) -> None:
    _log.error("a task of the front failed; it is started again", cause=error)


def _starting(grounds: _Grounds, keeper: LeaseKeeper | None) -> ServeStatus:
    """What is known before there are devices: whether the manager answers."""
    deployment, manager = grounds.deployment, grounds.manager
    return ServeStatus(
        name=deployment.name, http=deployment.http, grpc=deployment.grpc, driver=grounds.driver_name,
        devices=grounds.gpus, ready=False, glets=(), models=(), changes=(), deaths=0, stray=0,
        plan_problem="it is starting", manager=manager.endpoint if manager is not None else "",
        manager_away=(keeper is not None and keeper.away) or "it has not answered yet",
    )  # fmt: skip


class _Told:
    """What the admin socket and the metrics say."""

    def __init__(
        self, grounds: _Grounds, fleet: Fleet, controller: Controller, pool: Pool, keeper: LeaseKeeper | None
    ) -> None:
        self._grounds, self._fleet, self._controller, self._pool = grounds, fleet, controller, pool
        self._keeper = keeper

    def status(self) -> ServeStatus:
        """All of it, now."""
        deployment, pool = self._grounds.deployment, self._pool
        turns_of = {id(turns.executor): turns for turns in pool.turns}
        leases = self._leases()
        nodes = {one.gpu: one.node for one in leases}
        glets = tuple(
            GletStatus(
                glet=glet, pid=executor.pid if executor is not None else 0, ratio=_ratio(turns_of.get(id(executor))),
                busy_pct=self._busy_pct(glet), late_ms=_late_ms(turns_of.get(id(executor))),
                node=nodes.get(glet.gpu, ""),
            )
            for glet, executor in self._fleet.executors
        )  # fmt: skip
        return ServeStatus(
            name=deployment.name, http=deployment.http, grpc=deployment.grpc, driver=self._grounds.driver_name,
            devices=self._grounds.gpus, ready=all(pool.is_ready(name) for name in self._grounds.models), glets=glets,
            models=tuple(self._model(name) for name in self._grounds.models), changes=tuple(self._controller.records),
            deaths=self._fleet.deaths, stray=pool.stray, lag_ms=1000 * pool.lag_s,
            plan_problem=self._controller.problem,
            lease_problem=self._keeper.lease_problem if self._keeper is not None else "", leases=leases,
            manager=self._grounds.manager.endpoint if self._grounds.manager is not None else "",
            manager_away=self._keeper.away if self._keeper is not None else "",
        )  # fmt: skip

    def _leases(self) -> tuple[LeaseStatus, ...]:
        if self._keeper is None:
            return ()
        leaving = self._keeper.leaving
        return tuple(
            LeaseStatus(
                gpu=one.number, job=one.job_id, node=one.node, state=one.phase, left_s=round(one.left_s, 1),
                leaving=leaving.get(one.number, ""),
            )
            for one in self._keeper.leases()
        )  # fmt: skip

    def _busy_pct(self, glet: Glet) -> float:
        """Share of a glet's cycle that its planned batches take, by the latencies that rounds decide with."""
        turns = next((one for one in self._pool.turns if one.glet is glet), None)
        if turns is None or not glet.cycle_ms:
            return 0.0
        took_s = sum(turns.round.latencies_s[one.model][one.batch - 1] for one in glet.models)
        return 100_000 * took_s / glet.cycle_ms

    def _model(self, name: str) -> ModelStatus:
        counts = self._pool.counts[name]
        taken = sorted(self._pool.latencies_s[name])
        return ModelStatus(
            name=name, slo_ms=self._grounds.deployment.models[name].slo_ms,
            rate=self._controller.rates[name], planned_rate=self._fleet.plan.served().get(name, 0.0),
            waiting=self._pool.queues[name].rows, p50_ms=_quantile_ms(taken, 0.5), p99_ms=_quantile_ms(taken, 0.99),
            met=counts.met, late=counts.late, dropped=counts.dropped, rejected=counts.rejected, failed=counts.failed,
            refused=counts.refused, cancelled=counts.cancelled, again=counts.again,
        )  # fmt: skip


def _ratio(turns: Turns | None) -> float:
    return _median([ratio for _, ratio in turns.ratios], _RATIOS_LEAST) if turns is not None else 0.0


def _late_ms(turns: Turns | None) -> float:
    return 1000 * max((one.late_s for one in turns.round.paces.values()), default=0.0) if turns is not None else 0.0


def _median(values: Sequence[float], least: int) -> float:
    return statistics.median(values) if len(values) >= least else 0.0


def _quantile_ms(ascending: Sequence[float], share: float) -> float:
    return 1000 * ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0
