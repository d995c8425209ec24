"""The engine beside Slurm: read, decide, act (or only log the action in shadow mode), record.

Each turn begins from what Slurm says then, so nothing is lost when a turn is: slurmctld may be away, a command may be
refused, this process may be killed. All that outlives it is what jobs were served before (state_file.py).
"""

import asyncio
import math
import os
import pwd
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum

from farside import admin
from farside.config import SlurmConfig
from farside.config.check import names_in
from farside.ending import on_end_signals
from farside.errors import ConfigError, PeerError, RemoteProtocolError, Unavailable
from farside.log import get_log, start_logging
from farside.notify import notify_systemd
from farside.scheduler.configured_rules import left_out_over_slurm
from farside.scheduler.explain import expectation_lines
from farside.scheduler.predict.fit_process import Fitter
from farside.scheduler.sim.learned_before import NO_TREES
from farside.scheduler.slurm.action import (
    JobAction,
    Line,
    PowerAction,
    Requeue,
    SetNice,
    SetPriority,
    SlurmAction,
    told,
)
from farside.scheduler.slurm.check_settings import NICE, checked_settings
from farside.scheduler.slurm.commands import SlurmCommands
from farside.scheduler.slurm.decide import Decision, Ways, decide, failed, without_mark
from farside.scheduler.slurm.domain import Group, groups_of
from farside.scheduler.slurm.job_memory import Memory
from farside.scheduler.slurm.learned_jobs import LearnedJobs
from farside.scheduler.slurm.node_power import waiting_jobs
from farside.scheduler.slurm.power import SlurmPower, check_power_saving
from farside.scheduler.slurm.shadow_log import ShadowLog
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob, Snapshot, Traits
from farside.scheduler.slurm.state_file import DONE, MEMORY, StateFiles
from farside.units import format_seconds

# In a turn, so many refusals in a row mean that it is not the jobs: the rest waits for the next turn.
MOST_REFUSALS = 3
# Jobs of the queue in `farside slurm status`: enough to see the order, short enough for a terminal.
SHOWN_JOBS = 20
DAY_S = 86400.0

_log = get_log("slurm")


class Mode(StrEnum):
    """Whether anything is changed at Slurm."""

    RUN = "run"
    SHADOW = "shadow"


def run(config: SlurmConfig, mode: Mode) -> int:
    """Drives a Slurm, or only watches it, until SIGTERM or SIGINT; returns the process's exit code.

    Raises:
        ConfigError: A setting can't be used, or Slurm has not what it names.
        FarsideError: Slurm's programs are not there.
    """
    start_logging(config.log_level)
    engine = Engine(config, mode, SlurmCommands(config.slurm_conf, config.command_limit_s))

    async def until_told() -> None:
        stop = asyncio.Event()
        with on_end_signals(stop.set):
            await engine.run(stop)

    asyncio.run(until_told())
    return 0


def give_back(config: SlurmConfig) -> int:
    """Gives all waiting jobs back to Slurm that are held or ordered by us; returns how many they were.

    Raises:
        PeerError: Slurm does not answer, or refuses.
    """
    slurm = SlurmCommands(config.slurm_conf, config.command_limit_s)

    async def work() -> int:
        snapshot = await slurm.look()
        return await _give_back(slurm, _ours(snapshot, groups_of(snapshot.partitions, listed(config))))

    return asyncio.run(work())


def listed(config: SlurmConfig) -> tuple[str, ...]:
    """The partitions that are scheduled."""
    return tuple(names_in(config.partitions))


class Engine:
    """One engine over one Slurm.

    Args:
        config: Its settings.
        mode: Whether it may change anything.
        slurm: The Slurm.
        now_s: Seconds since 1970.
    """

    def __init__(
        self, config: SlurmConfig, mode: Mode, slurm: SlurmCommands, now_s: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._mode = mode
        self._slurm = slurm
        self._now_s = now_s
        before = checked_settings(config)
        self._rules = before.rules
        self._lacks_trees = before.lacks_trees
        self._state_files = StateFiles(config.state_dir)
        self._memory = self._state_files.memory()
        self._power = SlurmPower(config, self._state_files)
        self._shadow_log = ShadowLog(config, before, self._state_files, now_s)
        self._fitter = Fitter()
        self._goes_by = ""  # by what jobs are expected to take their run times, as was logged last
        # None until Slurm has answered for the first time: slurmctld may start after us.
        self._traits: Traits | None = None
        self._groups: tuple[Group, ...] = ()
        self._decision: Decision | None = None
        # 0: Slurm answers.
        self._away_since_s = 0.0
        self._turns = 0
        self._done = 0
        self._refused = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Takes turn after turn until it is stopped; then releases the jobs that it holds.

        Raises:
            ConfigError: Slurm has not what the settings name.
        """
        self._config.admin_socket.parent.mkdir(parents=True, exist_ok=True)
        # Before the first turn, so that status answers also while slurmctld does not.
        async with self._fitter, admin.serve(self._config.admin_socket, {"status": self.status}):
            _log.info("ready", mode=self._mode, policy=self._rules.order.name, partitions=self._config.partitions)
            for reason in left_out_over_slurm(self._config, self._rules.order):
                _log.warning("a part of the policy is left out", reason=reason)
            if self._lacks_trees:
                _log.warning(NO_TREES)
            notify_systemd("READY=1")
            while not stop.is_set():
                await self.turn()
                # The pause between two turns ends early when the service is told to stop.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._config.turn_s):
                        await stop.wait()
        self._power.close()
        # Only holds are given back. Priorities stay: the order is still good, and Slurm starts jobs by it.
        if self._mode is Mode.RUN and self._config.gate:
            await self._end_gate()

    async def turn(self) -> None:
        """One turn. Whatever Slurm does not answer or allow is tried again in the next.

        Raises:
            ConfigError: At the first look: Slurm has not what the settings name.
        """
        try:
            await self._turn()
        # slurmctld restarts, or is overloaded: one line when that begins, one when it is over, none in between.
        except (PeerError, RemoteProtocolError) as error:
            if not self._away_since_s:
                self._away_since_s = self._now_s()
                _log.warning("Slurm does not answer, so nothing is decided until it does", reason=error)
            return
        if self._away_since_s:
            _log.info("Slurm answers again", away=format_seconds(self._now_s() - self._away_since_s))
            self._away_since_s = 0.0

    async def _turn(self) -> None:
        # 1. Observe.
        if self._traits is None:
            traits = await self._slurm.traits()
            check_power_saving(self._config, traits)
            await self._learn(traits)
            self._traits = traits
        snapshot = await self._slurm.look()
        self._groups = self._present_groups(snapshot)
        # Ended jobs first, so that the decision below has learned from them.
        look = self._memory, snapshot, self._groups
        if self._decision is None:
            # The first look goes through all jobs that have ended, which may take seconds; status answers meanwhile.
            await asyncio.to_thread(self._shadow_log.note, *look)
        else:
            self._shadow_log.note(*look)
        learned = self._shadow_log.learned
        self._fit(learned, snapshot.at_s)
        # 2. Decide.
        ways = Ways(
            rules=self._rules, groups=self._groups, may_preempt=self._config.preempt, is_gating=self._config.gate,
            is_by_nice=self._config.order_by == NICE, owner=self._owner(self._traits),
            most_actions=self._config.actions_per_turn, estimator=learned.estimator,
            histories={group.partitions: learned.history(group) for group in self._groups},
        )  # fmt: skip
        decision = decide(snapshot, self._memory, self._traits, ways)
        nodes = (snapshot.nodes[name] for group in self._groups for name in group.nodes if name in snapshot.nodes)
        waiting = waiting_jobs(snapshot, self._groups, is_counting_memory=self._traits.is_counting_memory)
        wishes = self._power.wishes(nodes, snapshot.at_s, waiting)
        # 3. Act, or say so.
        if self._mode is Mode.SHADOW:
            # The decision of the turn before: what Slurm did since then answers that one.
            self._shadow_log.compare(self._memory, self._decision, snapshot)
            self._shadow_log.say((*decision.actions, *wishes))
            # In a thread: the simulation of many jobs takes long, and status answers meanwhile.
            await asyncio.to_thread(self._shadow_log.expect, snapshot, self._groups, owner=ways.owner)
        else:
            # An assertion that ends the service is better than a change to a partition that was never listed.
            _guard(decision.actions, self._groups)
            decision = replace(decision, memory=await self._act(decision, wishes))
        # 4. Write down.
        # After acting: what Slurm refused is not in the memory, and is decided again.
        self._decision, self._memory = decision, decision.memory
        self._state_files.keep(MEMORY, self._memory)
        self._turns += 1

    @staticmethod
    def _owner(traits: Traits) -> str:
        """The user whose jobs Slurm lets us lower; empty: all users."""
        # slurmctld goes by the uid of who calls, not by a name that is passed.
        uid = os.geteuid()
        try:
            me = pwd.getpwuid(uid).pw_name
        except KeyError:
            # In a container the uid may have no name.
            me = str(uid)
        return "" if uid == 0 or me == traits.slurm_user else me

    async def _learn(self, traits: Traits) -> None:
        """Jobs that ended before the engine started, from slurmdbd; without it only observed jobs are known."""
        # 0 switches it off.
        days = self._config.history_days
        if not days:
            return
        if not traits.has_accounting:
            _log.info("earlier jobs are not known: Slurm keeps no accounts in slurmdbd")
            return
        try:
            history = await self._slurm.history(self._now_s() - days * DAY_S)
        except (PeerError, Unavailable) as error:
            _log.warning("earlier jobs are not known: sacct fails", reason=error)
            return
        partitions = frozenset(listed(self._config))
        count = self._shadow_log.learn(one for one in history if one.partition in partitions)
        _log.info("read earlier jobs from slurmdbd", days=days, jobs=count)

    def _fit(self, learned: LearnedJobs, now_s: float) -> None:
        """Begins a fit that is due, and uses the model of one that has ended; nothing waits for it."""
        if learned.times is None:
            return
        if not self._fitter.is_fitting and (lesson := learned.times.lesson(now_s)) is not None:
            self._fitter.begin(lesson)
        if (fitted := self._fitter.take()) is not None:
            learned.take(fitted)
            _log.info(
                "a model of run times was fitted", jobs=fitted.trained_on, off_by=math.exp(fitted.found.log_error)
            )
        if learned.goes_by != self._goes_by:
            self._goes_by = learned.goes_by
            _log.info(self._goes_by)

    def _present_groups(self, snapshot: Snapshot) -> tuple[Group, ...]:
        """The groups as they are now. Partitions may change while we run: then nothing is done until they are right."""
        try:
            return groups_of(snapshot.partitions, listed(self._config))
        except ConfigError as error:
            # At the start it is a wrong setting, which a person corrects; later it is a change of slurm.conf.
            if not self._turns:
                raise
            raise PeerError(str(error)) from error

    # ------------------------------------------------------------------ acting

    async def _act(self, decision: Decision, wishes: Iterable[PowerAction]) -> Memory:
        """Carries all out; the memory without what Slurm refused."""
        memory, in_a_row = decision.memory, 0
        lines: list[Line] = []
        for action in (*decision.actions, *wishes):
            # A refusal may take the whole command_limit_s: a Slurm that hangs would hold up the turn for each job.
            error = "left for the next turn"
            if in_a_row < MOST_REFUSALS:
                error = await self._refusal(action)
                in_a_row = in_a_row + 1 if error else 0
                lines.append(
                    Line(at_s=self._now_s(), mode=self._mode, what=told(action), reason=action.reason, error=error)
                )
            # It counted as tried; nobody was requeued, so the hour of waiting does not begin.
            if error and isinstance(action, Requeue):
                memory = failed(memory, action)
        self._state_files.add(DONE, lines)
        return memory

    async def _refusal(self, action: SlurmAction) -> str:
        """Carries out one action; why Slurm did not take it, empty where it did."""
        try:
            await self._slurm.act(action)
        except PeerError as error:
            self._refused += 1
            _log.warning("Slurm refused an action", reason=error)
            return str(error)
        self._done += 1
        # There may be hundreds of them in a turn; holds, requeues and power are what people ask about.
        tell = _log.debug if isinstance(action, SetPriority | SetNice) else _log.info
        tell(told(action), reason=action.reason)
        return ""

    async def _end_gate(self) -> None:
        """Nobody would start the jobs that we hold: Slurm gets them back."""
        try:
            snapshot = await self._slurm.look()
            held = [job for job in _ours(snapshot, self._groups) if job.is_held_by_us]
            count = await _give_back(self._slurm, held)
            _log.info("the engine ends; held jobs were released", jobs=count)
        except (PeerError, RemoteProtocolError) as error:
            _log.error(
                "the engine ends, but Slurm does not answer: run `farside slurm release` when it does", reason=error
            )

    # ------------------------------------------------------------------ asked

    async def status(self, _: Mapping[str, object]) -> object:
        """Status for `farside slurm status`."""
        decision = self._decision
        return {
            "mode": self._mode,
            "policy": self._rules.order.name,
            "partitions": listed(self._config),
            "slurm": self._traits.version if self._traits else "",
            "answers": not self._away_since_s and self._traits is not None,
            "turns": self._turns,
            "changes": self._done,
            "refused": self._refused,
            "left": decision.left if decision else 0,
            "waiting": len(decision.queue) if decision else 0,
            "queue": list(decision.queue[:SHOWN_JOBS]) if decision else [],
            "goes_by": self._goes_by,
            "expected": self._expected(decision.queue[:SHOWN_JOBS]) if decision else [],
            "would_start": [one.job_id for one in decision.starting[:SHOWN_JOBS]] if decision else [],
            "ended": self._shadow_log.ended,
            "gain": self._shadow_log.gain,
            "why_no_gain": self._shadow_log.why_no_gain,
            "sleeping": self._power.asleep,
            "saved_kwh": round(self._power.saved_kwh, 3),
            "forecast": self._power.forecast,
        }

    def _expected(self, job_ids: Iterable[str]) -> list[Mapping[str, object]]:
        """What is expected of jobs, as `farside show --json` has it of a manager's; null where nothing is known."""
        learned = self._shadow_log.learned
        return [
            {
                "job_id": job_id,
                "expected_s": known and known.run_s,
                "expected_error": None if known is None or math.isnan(known.error) else known.error,
                "expected_from_jobs": known and known.from_jobs,
                "words": expectation_lines(known, limit_s),
            }
            for job_id, known, limit_s in learned.expectations(job_ids)
        ]


def _guard(actions: Iterable[JobAction], groups: Iterable[Group]) -> None:
    """No job of another partition, whatever went wrong before: this is the last look."""
    ours = frozenset(name for group in groups for name in group.partitions)
    for action in actions:
        assert action.partition in ours, f"{told(action)}: it is of partition {action.partition}"


def _ours(snapshot: Snapshot, groups: Iterable[Group]) -> list[SlurmJob]:
    """The waiting jobs of the listed partitions that we hold or have ordered."""
    partitions = frozenset(name for group in groups for name in group.partitions)
    return [
        job
        for job in snapshot.jobs
        if job.phase is JobPhase.WAITING
        and partitions.issuperset(job.partitions)
        and (job.is_marked or job.is_ours_by_priority)
    ]


async def _give_back(slurm: SlurmCommands, jobs: Collection[SlurmJob]) -> int:
    for job in jobs:
        await slurm.give_back(job.job_id, without_mark(job.admin_comment) if job.is_marked else None)
    return len(jobs)
