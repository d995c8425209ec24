"""A plan without a manager: the user names the Aggregators and the file with their key."""

import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from farside.agent.aggregator.layout import Layout
from farside.agent.aggregator.plan import (
    AGGREGATORS_MAX,
    JOB_VARIABLE,
    KEY_BYTES,
    KEY_VARIABLE,
    MEMBERS_MAX,
    NUMBER_MAX,
    SERVICE_VARIABLE,
    START_VARIABLE,
    AggregatorAddress,
    JobPlan,
    given,
    job_key,
    runs_problem,
    spread,
)
from farside.daemon.control.keys import read_keys
from farside.endpoint import parse_endpoint
from farside.errors import ConfigError, Unavailable

SERVICE, KEY_FILE, JOB = SERVICE_VARIABLE, "FARSIDE_AGGREGATION_KEY_FILE", JOB_VARIABLE
"""Environment variables; SERVICE is a list with commas between."""
KEY, START = KEY_VARIABLE, START_VARIABLE
"""Environment variables that a manager sets: the key of this start of the job in hexadecimal, and which start it is."""
# What launchers tell their processes: torchrun, Slurm, Open MPI, PMI. Rank, members, and those on the same machine.
_RANKS = (
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)
_SLURM_NODE = "SLURM_NODEID"
_SLURM_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_JOBS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_UNNAMED = ("", "none")
"""What torchrun says of every run without --rdzv-id: no name, or all of them would be one job."""


class StaticPlan:
    """A plan that never changes: chunks by bytes over the Aggregators, or as they are given."""

    is_static = True

    def __init__(
        self,
        service: Sequence[str],
        key_file: str | Path,
        *,
        job: str,
        rank: int,
        members: int,
        start: int = 0,
        owners: Sequence[int] | None = None,
        key: bytes = b"",
    ) -> None:
        """Reads the key; speaks to nobody.

        Args:
            service: The Aggregators in the same order on every rank, "unix:PATH" or "tcp:HOST:PORT" each.
            key_file: The one that they have as their ``key_file``.
            job: Name of the job, equal at all its members, and at no other job of these Aggregators.
            rank: This member's.
            members: How many there are.
            start: To tell a new start from one whose chunks an Aggregator may still hold.
            owners: By chunk, the place of its Aggregator in ``service``.
            key: Of this job and start alone; empty: it follows from that of the file.

        Raises:
            ConfigError: in one line.
        """
        if not job or len(job) > 128:
            raise ConfigError("a job's name has 1 to 128 characters")
        if not 1 <= members <= MEMBERS_MAX:
            raise ConfigError(f"{members} members; an Aggregator serves 1 to {MEMBERS_MAX}")
        if not 0 <= rank < members:
            raise ConfigError(f"rank {rank} of {members} members; ranks count from 0")
        if not 0 <= start <= NUMBER_MAX:
            raise ConfigError(f"start {start}: a number from 0")
        self.job, self.start, self.rank, self.members = job, start, rank, members
        self._aggregators = _addresses(service)
        self._key = key or job_key(read_keys(key_file)[0], job, start)
        self._owners = owners
        self._closed = threading.Event()

    def plan(self, layout: Layout, *, rule: str, after_epoch: int) -> JobPlan:
        """The plan; a newer one never comes.

        Raises:
            ConfigError: owners that were given don't fit the layout.
            Unavailable: it was closed.
        """
        if after_epoch:
            self._closed.wait()
            raise Unavailable("the plan was closed")
        numbers = [one.number for one in self._aggregators]
        runs = spread(layout, numbers) if self._owners is None else given(self._owners)
        problem = runs_problem(runs, len(layout.chunks), numbers)
        if problem:
            raise ConfigError(f"owners: {problem}")
        return JobPlan(
            job=self.job,
            start=self.start,
            key=self._key,
            members=self.members,
            digest=layout.digest,
            aggregators=self._aggregators,
            runs=runs,
        )

    def measured(self, iteration: int, iteration_s: float) -> None:
        """Nobody wants to know."""

    def close(self) -> None:
        """Ends a call of `plan` that waits."""
        self._closed.set()


class LaunchedAs(NamedTuple):
    """Which member of its job a process is, as its launcher says.

    Attributes:
        rank: From 0.
        members: Processes of the job.
        here: How many of them are on this machine; 1 where the launcher does not say.
    """

    rank: int
    members: int
    here: int


def launched_as(environment: Mapping[str, str] = os.environ) -> LaunchedAs | None:
    """What torchrun, `farside train`, srun or mpirun say of this process; None: nothing.

    Raises:
        ConfigError: they say no whole numbers.
    """
    for rank, members, here in _RANKS:
        if environment.get(rank) and environment.get(members):
            try:
                own = int(environment[rank]), int(environment[members])
            except ValueError as error:
                raise ConfigError(f"{rank} and {members} are no whole numbers") from error
            return LaunchedAs(*own, here=_here(environment.get(here, ""), environment.get(_SLURM_NODE, "")))
    return None


def _here(told: str, node: str) -> int:
    """Members on this machine, of a number, or of Slurm's list by node: "2(x3),1" are 2, 2, 2 and 1."""
    if told.isdecimal():
        return max(int(told), 1)
    left = int(node) if node.isdecimal() else 0
    for size, times in _SLURM_TASKS.findall(told):
        left -= int(times or 1)
        if left < 0:
            return max(int(size), 1)
    return 1


def static_plan_from(environment: Mapping[str, str] = os.environ) -> StaticPlan:
    """The plan that environment variables name: `SERVICE`, `KEY_FILE`, `JOB`, and what the launcher says of ranks.

    Raises:
        ConfigError: one is missing or wrong, in one line.
    """
    service = [one.strip() for one in environment.get(SERVICE, "").split(",") if one.strip()]
    if not service:
        raise ConfigError(
            f"this process is in no Farside job with aggregation, and {SERVICE} is not set",
            hint="name the Aggregators there: unix:PATH or tcp:HOST:PORT, with commas between",
        )
    key, start = _granted(environment)
    if not key and not environment.get(KEY_FILE):
        raise ConfigError(f"{KEY_FILE} is not set", hint="name the key file of the Aggregators")
    own = launched_as(environment)
    if own is None:
        raise ConfigError(
            "this process has no rank", hint="set RANK and WORLD_SIZE, or start it by torchrun, srun or mpirun"
        )
    told = (environment.get(one, "") for one in _JOBS)
    name = environment.get(JOB) or next((one for one in told if one not in _UNNAMED), "")
    if not name:
        raise ConfigError(
            f"{JOB} is not set", hint="give the job a name, the same at all its members; with torchrun by --rdzv-id"
        )
    file = "" if key else environment[KEY_FILE]
    return StaticPlan(service, file, job=name, rank=own.rank, members=own.members, start=start, key=key)


def _granted(environment: Mapping[str, str]) -> tuple[bytes, int]:
    """The key that a manager has given to this start of the job, empty if it has not, and the number of the start."""
    try:
        key, start = bytes.fromhex(environment.get(KEY, "")), int(environment.get(START, "0"))
    except ValueError as error:
        raise ConfigError(f"{KEY} or {START} is damaged", hint="leave them as Farside has set them") from error
    if key and len(key) != KEY_BYTES:
        raise ConfigError(f"{KEY} is damaged", hint="leave it as Farside has set it")
    return key, start


def _addresses(service: Sequence[str]) -> tuple[AggregatorAddress, ...]:
    if isinstance(service, str):
        service = (service,)
    if not 1 <= len(service) <= AGGREGATORS_MAX:
        raise ConfigError(f"{len(service)} Aggregators are named; 1 to {AGGREGATORS_MAX} can serve a job")
    if len(set(service)) != len(service):
        raise ConfigError("an Aggregator is named twice; name each once")
    found = []
    for number, text in enumerate(service):
        try:
            where = parse_endpoint(text)
        except ValueError as error:
            raise ConfigError(f"service: {error}") from error
        if isinstance(where, str):
            found.append(AggregatorAddress(number=number, unix=where))
        else:
            found.append(AggregatorAddress(number=number, tcp=text.removeprefix("tcp:")))
    return tuple(found)
