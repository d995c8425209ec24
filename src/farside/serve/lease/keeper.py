"""The leases of a deployment: observes them at the manager, decides (rules.py), submits, cancels, and reports.

All that is known of a lease is its job, which names the deployment: a front that is started again finds them there, and
calls them by the numbers of the plan that it takes over (front_state.py).
Without the manager the deployment goes on with the leases that it has.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from farside.agent.serving.remote import Address, NoCommonKey
from farside.agent.serving.worker_line import WorkerLine, connect_worker
from farside.client.manager_client import ManagerAddress, ManagerClient
from farside.endpoint import is_near
from farside.errors import FarsideError, PeerError, RefusedError
from farside.log import get_log
from farside.notify import notify_systemd
from farside.scheduler.manager.view.deployments import DeploymentBody
from farside.serve.failures import LEFT_OUT_S, Failures
from farside.serve.lease.look import Seen, listed_leases, seen_leases
from farside.serve.lease.report import fitting
from farside.serve.lease.rules import (
    FAILURES_MAX,
    LIVE,
    RUNNING,
    Judged,
    Lease,
    LeaseRules,
    judge,
)
from farside.serve.lease.terms import LEASE_S_MAX, is_asked_for
from farside.serve.site import Site

LOOK_S = 1.0
LIMIT_S = 10.0
CONNECT_S = 2.0
# A stop waits so long for what is being asked, as that may be for another lease.
LAST_ASK_S = 5.0
# A worker that starts does not answer at the first look; one that has not after so many is reported, and replaced where
# executors serve.
FAILURES_SAID = 10
# A worker that hangs up on all keys may be about to end; one that does so time after time is of no use.
REFUSALS_MAX = 3
# A lease that failed or that somebody cancelled is not asked for again for so long.
PAUSE_S = 60.0
# A manager that takes no more for now has somebody wait so long at most (max_hourly_jobs_per_user).
AGAIN_S_MAX = 3900.0
_ANOTHER_FRONTS, _LATER = 409, 429
# A start that waits for the manager is no start that hangs: systemd gives it so long again, each second.
_WAITING = "STATUS=waits for the manager\nEXTEND_TIMEOUT_USEC=300000000"

_ASKED_FOR = {"state": "waiting", "nodes": (), "held_s": 0.0, "master_port": 0, "reason": ""}

_log = get_log("serve.leases")

Body = Mapping[str, object]


@dataclass(slots=True)
class _Held:
    """A lease of ours: its number, its job as it was seen last, its node, and the line to its worker."""

    number: int
    job: Mapping[str, Any]
    seen_s: float
    is_draining: bool = False
    is_refused: bool = False  # the manager does not extend it
    is_asked_back: bool = False  # by us; the manager may have done it without an answer to us
    line: WorkerLine | None = None
    failures: int = 0
    refusals: int = 0  # of all keys, in a row
    is_silent: bool = False  # though executors serve there: others can't be started
    silence: str = ""  # what is said of a worker that does not answer
    is_ours: bool = False  # this front has asked for it
    unstarted: Failures = field(default_factory=Failures)  # executors

    def forget_line(self) -> None:
        """What went wrong with the line to its worker is over."""
        self.failures, self.refusals, self.is_silent, self.silence = 0, 0, False, ""

    @property
    def is_unfit(self) -> bool:
        return self.unstarted.count >= FAILURES_MAX

    @property
    def hangs_up(self) -> bool:
        return self.refusals >= REFUSALS_MAX

    @property
    def phase(self) -> str:
        return str(self.job["state"])

    @property
    def node(self) -> str:
        return next(iter(self.job["nodes"]), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """What leases of a deployment are.

    Attributes:
        name: The deployment's.
        front: What tells its fronts apart.
        job: Keys of a lease's job.
        rules: How many, and when they are replaced.
        keys: That workers and the front prove to each other, as their file has them now.
        site_of: The device of a lease, by its number and where its worker is.
    """

    name: str
    front: str
    job: Body
    rules: LeaseRules
    keys: Callable[[], Sequence[bytes]]
    site_of: Callable[[int, Address], Site]


def silent_words(node: str, host: str, manager: str) -> str:
    """Why a lease's worker may not answer, and what to do where it can't be reached.

    Args:
        node: Its node.
        host: The node's address, as the manager gave it.
        manager: Endpoint by which this front talks to the manager.
    """
    words = f"its worker on {node} does not answer"
    manager_host = None if manager.startswith("unix:") else urlsplit(manager).hostname
    if manager_host is None or is_near(manager_host) or not is_near(host):
        return words
    return (
        f"{words}: that node's agent joined by the manager's own socket, so its address is {host}, which no front on "
        "another machine reaches; give the agent the manager's address on the network (manager in agent.toml)"
    )


class LeaseKeeper:
    """Devices of a deployment that are leases; `run` keeps them.

    Args:
        manager: Where the manager is.
        settings: What the leases are.
        numbers: By job, what the front before called its GPU.
    """

    are_leased = True
    lacking = "`farside explain JOB` says what a lease waits for"

    def __init__(
        self, manager: ManagerAddress, settings: LeaseSettings, numbers: Mapping[str, int] | None = None
    ) -> None:
        self._before = dict(numbers or {})
        self._settings = settings
        self._in_use: Callable[[], AbstractSet[int]] = frozenset
        self._has_executor: Callable[[int], bool] = lambda _: False
        self._report: Callable[[], DeploymentBody] = lambda: DeploymentBody(front=settings.front, ready=False)
        self._manager, self._client = manager, ManagerClient(manager, limit_s=LIMIT_S)
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, _Held] = {}
        self._needed: int | None = None  # not known before the first plan: nothing is asked for or given back
        self._is_known = False
        self._asking: asyncio.Future[Any] | None = None
        self._paused_until_s = 0.0
        self._unfit = Failures()  # leases that were given back for it
        self._later = Failures()  # submissions that the manager did not take for now, in a row
        self._judged = Judged(usable=frozenset(), leaving={}, missing=0, submit=0, cancel=())
        self._given_back: set[str] = set()
        self.sites: dict[int, Site] = {}
        self._not_taken = ""
        self._name_lost = ""  # why the name is no longer ours
        self.away = ""
        self.problem = ""
        self._unfit_problem = ""

    # ---- for the controller

    @property
    def most(self) -> int:
        """Leases that plans may have at most."""
        return self._settings.rules.most

    @property
    def usable(self) -> frozenset[int]:
        """Numbers of the leases on which executors may stay, and may be started unless the worker is out of reach."""
        return frozenset(number for number in self._judged.usable if number in self.sites)

    @property
    def numbers(self) -> Mapping[str, int]:
        """What plans call the GPU of each lease, by its job."""
        return {job_id: one.number for job_id, one in self._held.items()}

    def want(self, count: int) -> None:
        """Takes how many are needed from now on."""
        is_first, self._needed = self._needed is None, count
        if is_first:  # what the front before had may be used at once
            self._judge()

    def failed(self, number: int, why: str) -> None:
        """Leaves a lease out for a while, as no executor could be started there; it is given back in the end."""
        now_s = self._loop.time()
        for job_id, one in self._held.items():
            is_there = one.number == number and one.line is not None and one.line.is_up
            if is_there and now_s >= one.unstarted.until_s:
                one.unstarted = one.unstarted.and_one(now_s, LEFT_OUT_S)
                self._unfit_problem = f"lease {job_id}: no executor starts on {one.node}: {why}"
                _log.warning(
                    "a lease is left out: no executor starts there", gpu=number, job=job_id, node=one.node, why=why,
                    again_in_s=one.unstarted.until_s - now_s, failures=one.unstarted.count,
                )  # fmt: skip
                self._judge()
                return

    @property
    def lease_problem(self) -> str:
        """What has become of leases that are lacking; empty where none is."""
        lost = self._name_lost and f"no lease is asked for or given back here: {self._name_lost}"
        silences = [one.silence for job_id, one in self._held.items() if job_id not in self._given_back]
        return "; ".join(filter(None, (lost, self.problem, self._unfit_problem, *silences)))

    def leases(self) -> tuple[Lease, ...]:
        """All but those that were given back, by number."""
        now_s = self._loop.time()
        found = (
            Lease(
                job_id=job_id, number=one.number, phase=one.phase, node=one.node, left_s=self._left_s(one),
                is_draining=one.is_draining, is_unfit=one.is_unfit, may_extend=not one.is_refused,
                is_outdated=not is_asked_for(one.job.get("spec", {}), self._settings.job),
                hangs_up=one.hangs_up, is_silent=one.is_silent,
                answers=one.line is not None and one.line.is_up and now_s >= one.unstarted.until_s and not one.is_unfit,
                serves=self._has_executor(one.number),
            )
            for job_id, one in self._held.items()
            if job_id not in self._given_back
        )  # fmt: skip
        return tuple(sorted(found, key=lambda one: one.number))

    def _left_s(self, one: _Held) -> float:
        if one.phase != RUNNING:
            return 0.0
        told_s = one.job.get("left_s")
        if told_s is None:  # the manager is of the version before; the front before may have had another limit
            told_s = (float(one.job["spec"]["time_limit_s"]) or LEASE_S_MAX) - float(one.job["held_s"])
        return max(0.0, float(told_s) - (self._loop.time() - one.seen_s))

    @property
    def leaving(self) -> Mapping[int, str]:
        """By number, why a lease is left."""
        return self._judged.leaving

    def serves(
        self, in_use: Callable[[], AbstractSet[int]], has_executor: Callable[[int], bool],
        report: Callable[[], DeploymentBody],
    ) -> None:  # fmt: skip
        """Takes what it asks of the front.

        Args:
            in_use: Devices with executors, started or not.
            has_executor: Whether one runs on a device.
            report: Makes the report.
        """
        self._in_use, self._has_executor, self._report = in_use, has_executor, report

    # ---- its loop

    async def claim(self, ended: asyncio.Event) -> bool:
        """Tells the manager of this deployment for the first time, and finds the leases that it has.

        A manager that does not answer is waited for; False where ``ended`` was set before it did.

        Raises:
            FarsideError: The name is another front's, or the manager refuses to say which leases there are.
        """
        while not ended.is_set():
            try:
                await self._tell()
                await self.look()
            except PeerError as error:
                if not self.away:
                    _log.warning("the manager does not answer; the deployment starts once it does", why=str(error))
                self.away = str(error)
                notify_systemd(_WAITING)
            else:
                self._is_back()
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await ended.wait()
        return False

    async def run(self) -> None:
        """Keeps them until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                with suppress(RefusedError):  # the name is another front's now, and so are the leases
                    await self._tell()
                await self.look()
            except FarsideError as error:
                self._is_known = False
                if not self.away:
                    _log.warning("the manager is away; the deployment stays on the leases that it has", why=str(error))
                self.away = str(error)
                await self._connect()
                self._judge()
                continue
            except Exception as error:  # the top of this task: a fault of ours is recorded, and leases are kept on
                _log.error("a look at the leases failed", cause=error)
                continue
            self._is_back()

    def _is_back(self) -> None:
        if self.away:
            _log.info("the manager is back")
        self.away = ""

    async def look(self) -> None:
        """Observes, decides, acts: once.

        Raises:
            FarsideError: The manager does not answer.
        """
        # 1. Observe.
        seen = await self._ask(self._observe)
        for job_id, job in seen.jobs.items():
            held = self._held.get(job_id)
            if held is None:
                number = self._before.pop(job_id, None)
                if number is None:
                    number = self._free_number()
                held = self._held[job_id] = _Held(number, job, self._loop.time())
            held.job, held.seen_s = job, self._loop.time()
            held.is_draining = held.node in seen.draining
            if self._left_s(held) > self._settings.rules.replace_before_s or held.phase != RUNNING:
                held.is_refused = False
        for job_id in [job_id for job_id, one in self._held.items() if one.phase not in LIVE]:
            self._over(job_id)
        await self._connect()
        # 2. Decide.
        self._judge()
        if self._needed is None:
            return
        is_paused = self._loop.time() < self._paused_until_s
        if not self._judged.missing and not is_paused:
            self.problem = self._unfit_problem = ""
        if self._name_lost:
            return
        # 3. Act.
        for job_id in self._judged.extend:
            await self._extend(job_id)
        if self._judged.extend:
            self._judge()  # one that is refused is replaced at once
        for job_id in self._judged.cancel:
            await self._give_back(job_id)
            one = self._held[job_id]
            if one.is_unfit or (one.hangs_up and one.is_ours):
                # The first is replaced at once; where the next comes to nothing too, it may be the models' fault.
                self._unfit = self._unfit.and_one(self._loop.time(), PAUSE_S)
                if self._unfit.count > 1:
                    self._paused_until_s = max(self._paused_until_s, self._unfit.until_s)
        is_paused = self._loop.time() < self._paused_until_s
        count = 0 if is_paused else self._judged.submit
        if count:
            await self._submit(count)

    async def end(self) -> None:
        """Gives all of them back: the deployment ends."""
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=LAST_ASK_S)
        # Another client: the thread of the look that was cancelled may still use the first.
        self._client = ManagerClient(self._manager, limit_s=LIMIT_S)
        try:
            if self._name_lost:
                raise RefusedError(self._name_lost)
            for job_id in list(self._held):
                await self._give_back(job_id)
            for job_id in await self._ask(self._listed):
                if job_id not in self._held:  # the look that asked for it was cancelled
                    self._held[job_id] = _Held(self._free_number(), _ASKED_FOR, self._loop.time())
                    await self._give_back(job_id)
            name, front = self._settings.name, self._settings.front
            await self._ask(lambda: self._client.delete("deployments", name, front=front))
        except FarsideError as error:
            _log.warning("leases are not given back; they end by themselves, without a front", why=str(error))
        self.hang_up()
        self._client.close()

    def hang_up(self) -> None:
        """Hangs up on all workers."""
        for one in self._held.values():
            self._hang_up(one)

    def _judge(self) -> None:
        before = self._judged
        self._judged = judge(self.leases(), self._needed or 0, self._in_use(), self._settings.rules)
        for number, why in self._judged.leaving.items():
            if number not in before.leaving:
                _log.info("a lease is left", gpu=number, why=why)

    async def _connect(self) -> None:
        """Connects to each worker that runs; one that does not answer is tried again at the next look."""
        lost = []
        for job_id, one in self._held.items():
            if one.phase != RUNNING:
                one.unstarted = Failures()  # it may come to run elsewhere
                one.forget_line()
            if one.phase != RUNNING or job_id in self._given_back:
                self._hang_up(one)
            elif one.line is None or not one.line.is_up:
                lost.append((job_id, one))
        await asyncio.gather(*(self._connect_one(job_id, one) for job_id, one in lost))

    async def _connect_one(self, job_id: str, one: _Held) -> None:
        address = Address(one.job["master_addr"] or "127.0.0.1", one.job["master_port"], self._settings.keys)
        try:
            async with asyncio.timeout(CONNECT_S):
                one.line = await connect_worker(address)
        except (FarsideError, TimeoutError) as error:
            if isinstance(error, NoCommonKey):
                one.refusals, one.failures, one.silence = one.refusals + 1, 0, ""
            else:
                one.failures, one.refusals = one.failures + 1, 0
                one.is_silent |= one.failures >= FAILURES_SAID and self._has_executor(one.number)
            if one.refusals == REFUSALS_MAX:
                told = f"its worker on {one.node} has hung up {REFUSALS_MAX} times on each key of the front's key_file"
                self._unfit_problem = f"lease {job_id}: {told}; give front and nodes the same file, or see its log"
                _log.warning("a worker hangs up", gpu=one.number, job=job_id, node=one.node, why=str(error))
            elif one.failures >= FAILURES_SAID and not one.silence:
                one.silence = f"lease {job_id}: {silent_words(one.node, address.host, self._manager.endpoint)}"
                _log.warning("a worker does not answer", gpu=one.number, job=job_id, node=one.node, why=str(error))
            return
        one.forget_line()
        self.sites[one.number] = self._settings.site_of(one.number, address)
        _log.info("a lease is ready", gpu=one.number, job=job_id, node=one.node)

    def _hang_up(self, one: _Held) -> None:
        if one.line is not None:
            one.line.close()
            one.line = None
        self.sites.pop(one.number, None)

    def _over(self, job_id: str) -> None:
        """Its job ends or has ended; where neither we nor its time did that, none is asked for at once."""
        one = self._held[job_id]
        self._hang_up(one)
        if one.phase == "stopping":
            return
        del self._held[job_id]
        self._given_back.discard(job_id)
        if not one.is_asked_back and one.phase in ("failed", "cancelled"):
            tasks = one.job.get("tasks", ()) if one.phase == "failed" else ()
            log = next((task["output"] for task in tasks if task["exit_code"] or task.get("signal")), "")
            where = f"; {log} there says why" if log else ""
            self.problem = f"lease {job_id}: {one.job['reason'] or one.phase}{where}"
            self._paused_until_s = self._loop.time() + PAUSE_S
            why = one.job["reason"]
            _log.warning("a lease has ended", job=job_id, phase=one.phase, why=why, log=log, again_in_s=PAUSE_S)
        else:
            _log.info("a lease has ended", job=job_id, phase=one.phase)

    def _free_number(self) -> int:
        used = {one.number for one in self._held.values()} | self._in_use() | set(self._before.values())
        return next(number for number in range(len(used) + 1) if number not in used)

    async def _extend(self, job_id: str) -> None:
        """Asks for another time limit; where the manager does not answer, the next look asks again."""
        one = self._held[job_id]
        asked_s, left_s = self._loop.time(), self._left_s(one) + float(str(self._settings.job["time_limit_s"]))
        try:
            await self._ask(lambda: self._client.post("jobs", job_id, "extend", body={"left_s": left_s}))
        except FarsideError as error:
            if isinstance(error, PeerError) or (isinstance(error, RefusedError) and error.code == _LATER):
                _log.debug("no answer whether a lease is extended", job=job_id, why=str(error))
                return
            one.is_refused = True
            _log.info("a lease is not extended, and is replaced", gpu=one.number, job=job_id, why=str(error))
        else:
            one.job, one.seen_s = {**one.job, "left_s": left_s}, asked_s
            _log.info("a lease is extended", gpu=one.number, job=job_id, left_s=round(left_s))

    async def _give_back(self, job_id: str) -> None:
        if job_id in self._given_back:
            return
        self._given_back.add(job_id)
        one = self._held[job_id]
        one.is_asked_back = True
        self._hang_up(one)
        _log.info("a lease is given back", gpu=one.number, job=job_id, node=one.node)
        try:
            await self._ask(lambda: self._client.post("jobs", job_id, "cancel"))
        except PeerError:
            self._given_back.discard(job_id)
            raise
        except FarsideError as error:  # it is over already, as the next look will find
            _log.debug("a lease was over already", job=job_id, why=str(error))

    async def _submit(self, count: int) -> None:
        body = {**self._settings.job, "count": 1}
        for _ in range(count):
            try:
                ids = (await self._ask(lambda: self._client.post("jobs", body=body)))["ids"]
            except PeerError:
                raise
            except FarsideError as error:
                self.problem, again_in_s, now_s = f"no lease: {error}", PAUSE_S, self._loop.time()
                if isinstance(error, RefusedError) and error.code == _LATER:
                    self._later = self._later.and_one(now_s, LOOK_S)
                    again_in_s = min(error.again_in_s, AGAIN_S_MAX) or self._later.until_s - now_s
                else:
                    self._later = Failures()
                self._paused_until_s = now_s + again_in_s
                _log.warning("the manager takes no lease", why=str(error), again_in_s=again_in_s)
                return
            self.problem, self._later = "", Failures()
            for job_id in ids:
                self._held[job_id] = _Held(self._free_number(), _ASKED_FOR, self._loop.time(), is_ours=True)
                _log.info("a lease is asked for", job=job_id)

    # ---- the manager, in a thread

    async def _ask(self, what: Callable[[], Any]) -> Any:
        # Whoever is cancelled here leaves the thread at work, and what it raises is nobody's then.
        self._asking = asking = asyncio.ensure_future(asyncio.to_thread(what))
        asking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(asking)

    def _listed(self) -> list[str]:
        return listed_leases(self._client, self._settings.name)

    def _observe(self) -> Seen:
        listed = [] if self._is_known else self._listed()
        if not self._is_known:
            self._before = {job_id: number for job_id, number in self._before.items() if job_id in listed}
        seen = seen_leases(self._client, self._settings.name, list(dict.fromkeys((*listed, *self._held))))
        self._is_known = True
        return seen

    async def _tell(self) -> None:
        """Reports. That the manager does not take a report is said, and no reason to do without leases.

        Raises:
            PeerError: The manager does not answer.
            RefusedError: The name is another front's.
        """
        body = msgspec.to_builtins(fitting(self._report()))
        try:
            await self._ask(lambda: self._client.put("deployments", self._settings.name, body=body))
        except PeerError:
            raise
        except FarsideError as error:
            if str(error) != self._not_taken:
                _log.warning("the manager does not show this deployment", why=str(error))
            self._not_taken = str(error)
            if isinstance(error, RefusedError) and error.code == _ANOTHER_FRONTS:
                self._name_lost = str(error)
                raise
        else:
            self._not_taken = self._name_lost = ""
