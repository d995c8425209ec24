"""Subtasks of a job that shares its machines: their positions, what each needs, and what is said about them. PURE.

A worker computes in COMP and is on the network in PULL and PUSH; before its first iteration it may compute and push
once [harmony §IV-A]. It goes through all positions in order, so that its progress is one number that only grows: a
message that comes twice, late or out of order does no harm, and nothing is counted.
"""

from dataclasses import dataclass
from typing import Literal

Resource = Literal["cpu", "net"]
Phase = Literal["INIT_COMP", "INIT_PUSH", "PULL", "COMP", "PUSH"]

INIT_COMP, INIT_PUSH = -2, -1
FIRST, LAST = INIT_COMP, 2**53
_PHASES: tuple[Phase, ...] = ("PULL", "COMP", "PUSH")


def position_of(iteration: int, phase: Literal["PULL", "COMP", "PUSH"]) -> int:
    """The position of a phase of an iteration, both counted from 0."""
    return len(_PHASES) * iteration + _PHASES.index(phase)


def phase_of(position: int) -> Phase:
    """The phase at a position."""
    if position == INIT_COMP:
        return "INIT_COMP"
    return "INIT_PUSH" if position == INIT_PUSH else _PHASES[position % len(_PHASES)]


def resource_of(position: int) -> Resource:
    """What a subtask needs alone, of all that run on its node."""
    return "cpu" if phase_of(position) in ("INIT_COMP", "COMP") else "net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A node says of a worker that it has done all up to a position."""

    epoch: int
    job: str
    worker: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """All workers of a job may begin a position; of several jobs the one with the least number goes first."""

    epoch: int
    job: str
    position: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A job's workers are all known: from now on each waits for `Ready`."""

    epoch: int
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """All nodes of the group are there again, under a new epoch; nothing that was ready is any more."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A node of the group is away: until it is back all run without permissions."""

    epoch: int


ToNode = Ready | Bound | Together | Apart
