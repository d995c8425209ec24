"""The audit: the entries of the log that people caused, as lines. PURE.

What people changed is in the log anyway, as it is what the log consists of. What was refused, and what operators looked
at of other people's jobs, is put there for the audit alone (`AccessRecorded`), but for repetitions: see `AccessGate`.
"""

from collections.abc import Mapping

from msgspec import Struct

from farside.scheduler.manager.model.codec import tag_of
from farside.scheduler.manager.model.event import AccessRecorded, Entry, JobSubmitted
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.view.like import like

DONE, READ = "done", "read"
# A page that asks every second, or a script that is refused for ever, must not fill the store.
REPEAT_S = 600.0
NOTES_PER_MINUTE = 60
_KINDS: Mapping[str, str] = {
    "JobSubmitted": "submit",
    "CancelRequested": "cancel",
    "HoldRequested": "hold",
    "LimitExtended": "extend",
    "ReleaseRequested": "release",
    "DrainRequested": "drain",
    "UndrainRequested": "undrain",
    "LendingOrdered": "lend",
    "SwapOrdered": "swap",
    "NodeInvited": "invite",
    "NodeAccepted": "accept",
    "NodeRevoked": "revoke",
    "NodesReserved": "reserve",
    "ReservationCancelled": "unreserve",
    "PowerPardoned": "pardon",
}


class AuditLine(Struct, frozen=True, kw_only=True):
    """Who did what."""

    seq: int
    at_s: float
    actor: str
    proof: str
    action: str
    object: str
    result: str


def show_audit(entry: Entry, state: LiveState) -> AuditLine:
    """One line: who, by what proof, did what to which object, and what came of it."""
    event = entry.event
    actor, proof = split_cause(entry.cause)
    if isinstance(event, AccessRecorded):
        action, target, result = event.action, event.target, event.result
    else:
        kind = tag_of(type(event))
        action, target, result = _KINDS.get(kind, kind), _target_of(entry, state), DONE
    return like(AuditLine, entry, actor=actor, proof=proof, action=action, object=target, result=result)


def split_cause(cause: str) -> tuple[str, str]:
    """Actor and proof of a cause: ``user ann`` and ``uid 1000``, ``operator carl`` and ``token``.

    No proof in what an older version wrote.
    """
    actor, _, proof = cause.partition(", ")
    return actor, proof


def _target_of(entry: Entry, state: LiveState) -> str:
    event = entry.event
    if isinstance(event, JobSubmitted):
        ids = state.submitted.get(entry.seq, ())
        return f"job {ids[0]}" if len(ids) == 1 else f"jobs {ids[0]} to {ids[-1]}" if ids else ""
    job_id, node = getattr(event, "job_id", ""), getattr(event, "node", "")
    if job_id:
        return f"job {job_id}"
    if node:
        return f"node {node}"
    nodes = getattr(event, "nodes", ())
    return f"node {', '.join(nodes)}" if nodes else str(getattr(event, "reservation_id", ""))


class AccessGate:
    """Which notes are worth an entry: of the same one in ten minutes the first, and not too many a minute in all."""

    def __init__(self) -> None:
        self._last_s: dict[tuple[str, AccessRecorded], float] = {}
        self._minute_of: dict[str, tuple[float, int, int]] = {}  # by cause: its begin, notes in it, left out since

    def admitted(self, cause: str, note: AccessRecorded, now_s: float) -> AccessRecorded | None:
        """The note to write, with how many others of this actor were left out before it; None: none."""
        if now_s - self._last_s.get((cause, note), -REPEAT_S) < REPEAT_S:
            return None
        begin_s, count, left_out = self._minute_of.get(cause, (now_s, 0, 0))
        if now_s - begin_s >= 60:
            begin_s, count = now_s, 0
        if count >= NOTES_PER_MINUTE:
            self._minute_of[cause] = begin_s, count, left_out + 1
            return None
        self._minute_of[cause] = begin_s, count + 1, 0
        self._forget(now_s)
        self._last_s[cause, note] = now_s
        if not left_out:
            return note
        return AccessRecorded(
            action=note.action, target=note.target, result=f"{note.result}; {left_out} more were not written down"
        )

    def _forget(self, now_s: float) -> None:
        if len(self._last_s) < 10_000:
            return
        self._last_s = {key: at_s for key, at_s in self._last_s.items() if now_s - at_s < REPEAT_S}
