"""Roles of a job: processes that are not alike, such as workers and parameter servers. PURE.

All processes of all roles start together or not at all. A process of a role with GPUs has one; those of a role without
stand beside the others, in their proportion (servers.py), and never hold a job up that has room for its GPUs. For the
cycle each GPU asks for its own process's CPUs and memory and for as many of each role without GPUs as one node can
get for a GPU, rounded up: so what is promised is always enough.

A role that is a service, as parameter servers are, runs for as long as the others: when all processes of all other
roles have ended well, the services are told to end and the job is done, however they end then. The failure rule is the
same for all: a process that fails, or a service that ends before the others, ends the job, which counts as one failure.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

# Of all roles: each process is told in its environment where all are, and execve(2) takes 128 KiB a variable.
MAX_PROCESSES = 4096
MAX_ROLES = 16
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """``count`` processes that are alike.

    Attributes:
        name: What FARSIDE_ROLE says.
        argv: Program and arguments, run without a shell.
        count: How many.
        gpus: Of each: 1 or 0.
        cpus: Of each; 0: not counted. ``memory_bytes``: likewise.
        swap_bytes: Of each: Farside swap that it may use beyond its memory.
        is_service: It ends when the others have.
    """

    name: str
    argv: tuple[str, ...]
    count: int = 1
    gpus: int = 1
    cpus: float = 0.0
    memory_bytes: float = 0.0
    swap_bytes: float = 0.0
    is_service: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Which process of which role somebody is, and where the others of its role and the services are reached."""

    role: str
    rank: int
    address: str
    port: int


def gpus_of(roles: Iterable[Role]) -> int:
    """All GPUs of a job."""
    return sum(role.count * role.gpus for role in roles)


def per_gpu(roles: Sequence[Role], what: str) -> float:
    """What a GPU has to bring along of ``cpus``, ``memory_bytes`` or ``swap_bytes``, whatever the places."""
    gpus = gpus_of(roles)
    if not gpus:
        return 0.0
    own: float = max(getattr(role, what) for role in roles if role.gpus)
    beside: float = sum(math.ceil(role.count / gpus) * getattr(role, what) for role in roles if not role.gpus)
    return own + beside


def most_on_a_node(roles: Sequence[Role], gpus: int) -> int:
    """How many processes a node may get, of which the job gets at most so many GPUs."""
    total = gpus_of(roles)
    there = min(gpus, total)
    if not there:
        return 0
    return there + sum(math.ceil(there * role.count / total) for role in roles if not role.gpus)


def rendezvous(standings: Iterable[Standing]) -> Mapping[str, str]:
    """FARSIDE_HOSTS_WORKER and the like: HOST:PORT of each process of a role, by rank, with commas between.

    The port is one that no other job of Farside's has on that node; nobody but the job listens there.
    """
    hosts: dict[str, list[str]] = {}
    for one in sorted(standings, key=lambda one: (one.role, one.rank)):
        hosts.setdefault(one.role, []).append(f"{one.address}:{one.port}")
    return {f"FARSIDE_HOSTS_{role.upper()}": ",".join(told) for role, told in hosts.items()}


def role_problems(roles: Sequence[Role]) -> Iterator[str]:
    """What is wrong with the roles of a job; each line names the role, the key and what to do."""
    if len(roles) > MAX_ROLES:
        yield f"roles: at most {MAX_ROLES}, not {len(roles)}"
        return
    count = sum(role.count for role in roles if role.count > 0)
    if count > MAX_PROCESSES:
        yield f"roles: {count:,} processes in all; a job with roles has at most {MAX_PROCESSES:,}; lower their count"
    names = [role.name for role in roles]
    for role in roles:
        where = f"role {role.name:.40}"
        if not _NAME.match(role.name):
            yield f"{where}: its name must be small letters, digits and _, at most 32"
        if names.count(role.name) > 1:
            yield f"{where}: there are two of that name"
        if not role.argv or not role.argv[0]:
            yield f"{where}: argv: is empty; name the program to run"
        if role.count < 1:
            yield f"{where}: count: must be 1 to {MAX_PROCESSES}, is {role.count}"
        if role.gpus not in (0, 1):
            yield f"{where}: gpus: a process of a role has 1 or 0, not {role.gpus}; raise count instead"
        for key in ("cpus", "memory_bytes", "swap_bytes"):
            if not 0 <= getattr(role, key) < 1e18:
                yield f"{where}: {key}: must be 0 or more, is {getattr(role, key)}"
        if role.swap_bytes and not role.memory_bytes:
            yield f"{where}: swap: it swaps what goes beyond its memory; say how much that is, by memory"
    if not any(role.gpus for role in roles):
        yield "roles: none has GPUs; a job has at least one"
    if all(role.is_service for role in roles):
        yield "roles: all are services, and such a job would never end; one role has to do the work"
