"""A node's power in the log, from which the next manager goes on. PURE.

How it works
  A note is written before the order that it names is given to a BMC, and again when that has answered. So whoever comes
  after knows of every order that may have been carried out. What a BMC may or may not have been told is asked, and not
  told again unless the answer shows that it had not reached it (state_machine.py, ``doubted_s``).

  Beats, what stands on a node and questions to its BMC are no part of it: they are of the moment.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from farside.scheduler.power.state import Command, NodePower, Phase, PowerRecord

# Of these it matters whether they were carried out.
_TO_BMC = frozenset({Command.SOFT_OFF, Command.FORCE_OFF, Command.POWER_ON})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePowerRecord(PowerRecord):
    """A node's power.

    ``command``: an order to its BMC whose answer is not known yet; empty: there is none.
    """

    command: str = ""

    @property
    def is_open(self) -> bool:
        """Whether jobs may start there, as far as its power goes."""
        return self.phase is Phase.ON and not self.drain_number

    @property
    def may_be_told_to_stop(self) -> bool:
        """Whether an order to stop may come next: then it must be known what runs there."""
        return self.phase in (Phase.ON, Phase.DRAINING) and not self.is_stopping

    @property
    def is_expected_silent(self) -> bool:
        """Whether its agent is away, or about to go, because of us: nobody calls it lost."""
        return self.phase in (Phase.OFF, Phase.BOOTING) or self.is_stopping


def note_of(node: NodePower) -> NodePowerRecord:
    """The power record of a node for the log."""
    pending = node.pending
    command = pending.command.value if pending is not None and pending.command in _TO_BMC else ""
    return NodePowerRecord(command=command, **_record_of(node))


def _record_of(known: PowerRecord) -> dict[str, Any]:
    return {field.name: getattr(known, field.name) for field in fields(PowerRecord)}


def is_news(before: NodePowerRecord | None, now: NodePowerRecord) -> bool:
    """Whether the log does not say so yet. A node that is on, and of which nothing is known, has no note."""
    if before is None:
        return now.phase is not Phase.ON or now.is_pinned or bool(now.drain_number or now.stops_s)
    return replace(now, number=before.number) != before  # questions have numbers too


def power_of(name: str, note: NodePowerRecord | None, now_s: float) -> NodePower:
    """A node as a manager that has just begun to lead finds it in the log."""
    if note is None:
        return NodePower(name=name, since_s=now_s, last_beat_s=now_s, reason="adopted")
    doubted_s = now_s if note.command == Command.SOFT_OFF else math.inf
    return NodePower(name=name, last_beat_s=now_s, doubted_s=doubted_s, **_record_of(note))
