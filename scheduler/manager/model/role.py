"""Roles of a job: processes of different kinds, such as workers and parameter servers. PURE.

All processes of all roles start together or not at all. A process of a role with GPUs has one; those of a role without
stand beside the others, in their proportion (servers.py), and never hold a job up that has room for its GPUs. For the
cycle each GPU asks for its own process's CPUs and memory and for as many of each role without GPUs as one node can
get for a GPU, rounded up: so what is promised is always enough.

A role that is a service, as parameter servers are, runs for as long as the others: when all processes of all other
roles have ended well, the services are stopped and the job is done, however they end then. The failure rule is the
same for all: a process that fails, or a service that ends before the others, ends the job, which counts as one failure.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from farside.agent.messages import ARGUMENTS_MAX
from farside.scheduler.manager.field_limit import items, limit_problems, number

# Of all roles: each process is told in its environment where all are, and execve(2) takes 128 KiB a variable.
MAX_PROCESSES = 4096
MAX_ROLES = 16

Arguments = Annotated[
    tuple[str, ...], items("Program and arguments, run without a shell", ARGUMENTS_MAX, "put them in a file")
]
_NAME = Meta(
    description="What FARSIDE_ROLE says",
    extra={"pattern": "^[a-z][a-z0-9_]{0,31}$", "advice": "small letters, digits and _, at most 32"},
)


class Role(Struct, frozen=True, kw_only=True):
    """``count`` processes of a job that are alike."""

    name: Annotated[str, _NAME]
    argv: Arguments
    count: Annotated[int, number("How many processes", 1, MAX_PROCESSES)] = 1
    gpus: Annotated[int, number("GPUs of each process: 1 or 0", 0, 1, "raise count instead")] = 1
    cpus: Annotated[float, number("CPUs of each process; 0: not counted", 0)] = 0.0
    memory_bytes: Annotated[float, number("Memory of each process; 0: not counted", 0)] = 0.0
    swap_bytes: Annotated[float, number("Farside swap of each process beyond its memory; 0: no swap at all", 0)] = 0.0
    is_service: Annotated[bool, Meta(description="Whether it is ended when all others have ended well")] = False


class RoleBody(Role, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processes of a job that are alike, as the API takes them."""

    service: Annotated[bool, Meta(description="Alias of is_service, as in a job file")] = False


def role_of(body: RoleBody) -> Role:
    """The role that the log keeps, from a body."""
    found = {name: getattr(body, name) for name in Role.__struct_fields__}
    return Role(**{**found, "is_service": body.is_service or body.service})


def gpus_of(roles: Iterable[Role]) -> int:
    """All GPUs of a job."""
    return sum(role.count * role.gpus for role in roles)


def per_gpu(roles: Sequence[Role], what: str) -> float:
    """The ``cpus``, ``memory_bytes`` or ``swap_bytes`` that each GPU needs beside it, on any node."""
    gpus = gpus_of(roles)
    if not gpus:
        return 0.0
    own: float = max(getattr(role, what) for role in roles if role.gpus)
    beside: float = sum(math.ceil(role.count / gpus) * getattr(role, what) for role in roles if not role.gpus)
    return own + beside


def most_on_a_node(roles: Sequence[Role], gpus: int) -> int:
    """Most processes of a job on a node that has ``gpus`` GPUs for it."""
    total = gpus_of(roles)
    there = min(gpus, total)
    if not there:
        return 0
    return there + sum(math.ceil(there * role.count / total) for role in roles if not role.gpus)


def role_problems(roles: Sequence[Role]) -> Iterator[str]:
    """Errors in the roles of a job; each line names the role, the key and what to do."""
    if len(roles) > MAX_ROLES:
        yield f"roles: at most {MAX_ROLES}, not {len(roles)}"
        return
    count = sum(role.count for role in roles if role.count > 0)
    if count > MAX_PROCESSES:
        yield f"roles: {count:,} processes in all; a job with roles has at most {MAX_PROCESSES:,}; lower their count"
        return
    names = [role.name for role in roles]
    for role in roles:
        where = f"role {role.name:.40}"
        yield from (f"{where}: {problem}" for problem in limit_problems(role))
        if names.count(role.name) > 1:
            yield f"{where}: there are two of that name"
        if not role.argv or not role.argv[0]:
            yield f"{where}: argv: is empty; name the program to run"
        if role.swap_bytes and not role.memory_bytes:
            yield f"{where}: swap: it swaps what goes beyond its memory; say how much that is, by memory"
    if not any(role.gpus for role in roles):
        yield "roles: none has GPUs; a job has at least one"
    if all(role.is_service for role in roles):
        yield "roles: all are services, and such a job would never end; one role has to do the work"
