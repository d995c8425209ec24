"""Slurm's command line programs, of any version: one reading a turn, one call an action.

Jobs are read as JSON where squeue can, else as scontrol's lines; nodes and partitions always as scontrol's lines, which
have hardly changed for ten years. No version number is compared: what works is found by trying it.
"""

import os
import time
from pathlib import Path

from farside.errors import PeerError, RemoteProtocolError, Unavailable
from farside.log import get_log
from farside.scheduler.power.driver.run_program import run_program
from farside.scheduler.slurm import read_json, read_sacct, read_text
from farside.scheduler.slurm.action import (
    Hold,
    PowerDown,
    PowerUp,
    Release,
    Requeue,
    SetNice,
    SetPriority,
    SlurmAction,
    told,
)
from farside.scheduler.slurm.shadow_job import Ended
from farside.scheduler.slurm.snapshot import PRIORITY_LOW, SlurmJob, Snapshot, Traits

# Ten thousand jobs are 40 MB of JSON.
MOST_BYTES = 256 << 20
# --details: which GPUs of which node a job has. --all: hidden partitions, and those of other groups.
_LOOK = "scontrol", "--oneliner", "--details", "--all", "show"

_log = get_log("slurm")


class SlurmCommands:
    """Slurm by its commands.

    Args:
        conf: Its slurm.conf; empty: where Slurm looks by itself.
        limit_s: For each call.

    Raises, all calls: PeerError where Slurm does not answer or refuses; Unavailable where it is not installed;
    RemoteProtocolError where its answer can't be read.
    """

    def __init__(self, conf: Path, limit_s: float) -> None:
        self._limit_s = limit_s
        # Slurm's programs print local times otherwise, and names of nodes in a locale's order.
        self._environment = {"SLURM_TIME_FORMAT": "%s"}
        # The environment of the commands is made here, so the variable has to be passed on.
        if file := str(conf) if conf.is_absolute() else os.environ.get("SLURM_CONF", ""):
            self._environment["SLURM_CONF"] = file
        # Until it fails once: a squeue without JSON does not learn it while we run.
        self._is_json = True

    async def traits(self) -> Traits:
        """Properties of this Slurm."""
        return read_text.traits_of(await self._run("scontrol", "show", "config"))

    async def look(self) -> Snapshot:
        """All jobs, nodes and partitions. Read one after the other: what comes in between is seen the next time."""
        # Before the questions: what changes while they are asked belongs to the next turn.
        at_s = time.time()
        try:
            jobs = await self._jobs()
            nodes = read_text.nodes_of(await self._run(*_LOOK, "node"))
            partitions = read_text.partitions_of(await self._run(*_LOOK, "partition"))
        except ValueError as error:
            hint = "report the version of your Slurm"
            raise RemoteProtocolError(f"scontrol's answer can't be read: {error}", hint=hint) from error
        return Snapshot(at_s=at_s, jobs=jobs, nodes=nodes, partitions=partitions)

    async def history(self, since_s: float) -> tuple[Ended, ...]:
        """The GPU jobs that have ended since then, as slurmdbd knows them, the first to end first."""
        # sacct takes local times only, without a zone.
        begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since_s))
        told = ("--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2")
        # Both times, or sacct makes up one by SLURM_TIME_FORMAT and then can't read it.
        span = f"--starttime={begin}", "--endtime=now"
        return read_sacct.ended_of(await self._run("sacct", *told, *span, f"--format={','.join(read_sacct.FIELDS)}"))

    async def _jobs(self) -> tuple[SlurmJob, ...]:
        why_not = ""
        if self._is_json:
            try:
                return read_json.jobs_of(await self._run("squeue", "--json", "--states=all", is_essential=False))
            except ValueError as error:
                why_not = str(error)
        jobs = read_text.jobs_of(await self._run(*_LOOK, "job"))
        if why_not:  # and not only that slurmctld was away
            _log.info("squeue prints no readable JSON: jobs are read as lines", reason=why_not)
            self._is_json = False
        return jobs

    async def act(self, action: SlurmAction) -> None:
        """Carries out one action."""
        try:
            for argv in _calls(action):
                await self._run(*argv)
        except PeerError as error:
            raise PeerError(f"cannot {told(action)}: {error}") from error

    async def give_back(self, job_id: str, comment: str | None) -> None:
        """Lets Slurm compute a job's priority again. ``comment``: its AdminComment from now on; None: as it is."""
        # This resets the priority as well: Slurm takes a held job and one with a priority of ours alike.
        await self._run("scontrol", "release", job_id)
        if comment is not None:
            await self._run("scontrol", "update", f"JobId={job_id}", f"AdminComment={comment}")

    async def _run(self, *argv: str, is_essential: bool = True) -> str:
        try:
            done = await run_program(argv, limit_s=self._limit_s, environment=self._environment, most_bytes=MOST_BYTES)
        except Unavailable as error:
            raise Unavailable(f"{argv[0]}: is not there", hint="install Slurm's client programs") from error
        except PeerError as error:
            raise PeerError(f"{argv[0]} has not ended in {self._limit_s:g} s", hint="does slurmctld run?") from error
        # Without is_essential the output decides: the reader finds that it is no JSON.
        if done.status and is_essential:
            raise PeerError(f"{' '.join(argv[:2])}: {_complaint(done.stderr, done.status)}")
        return done.stdout


def _complaint(text: str, status: int) -> str:
    """The last line that Slurm said, without the name of the program."""
    # Slurm prints warnings before the error that ended the command.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"exit status {status}"
    return lines[-1].partition("error: ")[2][:200] or lines[-1][:200]


def _calls(action: SlurmAction) -> tuple[tuple[str, ...], ...]:
    """The commands that an action is, without a shell in between."""
    update = "scontrol", "update"
    match action:
        case SetPriority():
            return ((*update, f"JobId={action.job_id}", f"Priority={action.priority}"),)
        case SetNice():
            return ((*update, f"JobId={action.job_id}", f"Nice={action.nice}"),)
        case Hold():
            return ((*update, f"JobId={action.job_id}", "Priority=0", f"AdminComment={action.comment}"),)
        case Release():
            # Slurm takes no priority for a held job. Our mark goes last: without it nobody would know whose hold it is.
            changed = f"Priority={action.priority}", f"AdminComment={action.comment}"
            return (("scontrol", "release", action.job_id), (*update, f"JobId={action.job_id}", *changed))
        case Requeue():
            # First: a requeued job keeps its priority, and would be started again before the job that it made room for.
            lowest = (*update, f"JobId={action.job_id}", f"Priority={PRIORITY_LOW}")
            return (lowest, ("scontrol", "requeue", action.job_id))
        case PowerDown():
            return ((*update, f"NodeName={action.node}", "State=POWER_DOWN"),)
        case PowerUp():
            return ((*update, f"NodeName={action.node}", "State=POWER_UP"),)
