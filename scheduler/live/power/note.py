"""What the log keeps of a node's power, so that a manager that starts again goes on where the one before was. PURE.

How it works
  A note is written before the order that it names is given to a BMC, and again when that has answered. So whoever comes
  after knows of every order that may have been carried out. What a BMC may or may not have been told is asked, and not
  told again unless the answer shows that it had not reached it (machine.py, ``doubted_s``).

  Beats, what stands on a node and questions to its BMC are no part of it: they are of the moment.
"""

import math
from dataclasses import dataclass, replace

from farside.scheduler.energy.power.state import Command, NodePower, Phase

# Of these it matters whether they were carried out.
_TO_BMC = frozenset({Command.SOFT_OFF, Command.FORCE_OFF, Command.POWER_ON})


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerNote:
    """A node's power; fields as in `NodePower`, null where that has infinity.

    ``command``: an order to its BMC whose answer is not known yet; empty: there is none.
    """

    phase: Phase = Phase.ON
    since_s: float = 0.0
    reason: str = ""
    command: str = ""
    drain_number: int = 0
    number: int = 0
    is_stopping: bool = False
    is_wanted: bool = False
    is_refused: bool = False
    is_pinned: bool = False
    past_boots: tuple[str, ...] = ()
    stops_s: tuple[float, ...] = ()
    tries: int = 0
    stop_s: float | None = None
    forced_s: float | None = None
    stay_until_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether jobs may start there, as far as its power goes."""
        return self.phase is Phase.ON and not self.drain_number

    @property
    def may_be_told_to_stop(self) -> bool:
        """Whether that may come next: then it must be known what stands there."""
        return self.phase in (Phase.ON, Phase.DRAINING) and not self.is_stopping

    @property
    def is_expected_silent(self) -> bool:
        """Whether its agent is away, or about to go, because of us: nobody calls it lost."""
        return self.phase in (Phase.OFF, Phase.BOOTING) or self.is_stopping


def note_of(node: NodePower) -> PowerNote:
    """What the log should say of a node."""
    pending = node.pending
    return PowerNote(
        phase=node.phase,
        since_s=node.since_s,
        reason=node.reason,
        command=pending.command.value if pending is not None and pending.command in _TO_BMC else "",
        drain_number=node.drain_number,
        number=node.number,
        is_stopping=node.is_stopping,
        is_wanted=node.is_wanted,
        is_refused=node.is_refused,
        is_pinned=node.is_pinned,
        past_boots=node.past_boots,
        stops_s=node.stops_s,
        tries=node.tries,
        stop_s=_or_none(node.stop_s),
        forced_s=_or_none(node.forced_s),
        stay_until_s=_or_none(node.stay_until_s),
    )


def is_news(before: PowerNote | None, now: PowerNote) -> bool:
    """Whether the log does not say so yet. A node that is on, and of which nothing is known, has no note."""
    if before is None:
        return now.phase is not Phase.ON or now.is_pinned or bool(now.drain_number or now.stops_s)
    return replace(now, number=before.number) != before  # questions have numbers too


def power_of(name: str, note: PowerNote | None, now_s: float) -> NodePower:
    """A node as a manager that has just begun to lead finds it in the log."""
    if note is None:
        return NodePower(name=name, since_s=now_s, last_beat_s=now_s, reason="adopted")
    return NodePower(
        name=name,
        phase=note.phase,
        since_s=note.since_s,
        reason=note.reason,
        past_boots=note.past_boots,
        last_beat_s=now_s,
        drain_number=note.drain_number,
        is_stopping=note.is_stopping,
        is_wanted=note.is_wanted,
        is_refused=note.is_refused,
        is_pinned=note.is_pinned,
        stops_s=note.stops_s,
        tries=note.tries,
        stop_s=_or(note.stop_s, math.inf),
        forced_s=_or(note.forced_s, math.inf),
        stay_until_s=_or(note.stay_until_s, -math.inf),
        doubted_s=now_s if note.command == Command.SOFT_OFF else math.inf,
        number=note.number,
    )


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
