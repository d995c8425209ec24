"""Idle GPUs: when a job is warned that it does not use its GPUs, and when it is ended for that. PURE.

What agents sample becomes a `Span` for each process of a job: a time in which all of its GPUs were seen to be less busy
than the job's rule says. Time that nobody saw is in no span, and one sample that is busier begins a new one. The job is
idle while all of its processes are, so by what their spans have in common.

A rule warns once a job was idle for ``after_s``. If it ends jobs, the warning says when: that is not moved afterwards,
and the job ends only when its spans reach to that time without a gap. All of it is in the log, so whoever decides next
goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRule:
    """What a partition or a QOS says of its jobs' GPUs.

    Attributes:
        below_pct: A GPU is idle while it is less busy than this.
        after_s: A job is warned when all of its GPUs were idle for so long.
        grace_s: It is ended so long after that, if they stay idle.
        ends: Whether it is ended at all, and not only warned.
    """

    below_pct: int
    after_s: float
    grace_s: float
    ends: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRules:
    """The rules by partition and by QOS; a QOS that is here goes before the partition, None: its jobs have no rule.

    ``first``: the partition of jobs that name none.
    """

    by_partition: Mapping[str, IdleRule] = field(default_factory=dict)
    by_qos: Mapping[str, IdleRule | None] = field(default_factory=dict)
    first: str = ""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.by_partition) or any(self.by_qos.values())

    def of(self, *, partition: str, qos: str) -> IdleRule | None:
        """The rule of a job; None: it has none."""
        if qos in self.by_qos:
            return self.by_qos[qos]
        return self.by_partition.get(partition or self.first)


NO_IDLE_RULES = IdleRules()


class Span(Struct, frozen=True, kw_only=True):
    """A time in which GPUs were seen to be less than ``below_pct`` busy, without a gap."""

    since_s: float
    until_s: float
    below_pct: int

    @property
    def length_s(self) -> float:
        """How long it is; below 0 where nothing of it is left."""
        return self.until_s - self.since_s

    def after(self, at_s: float) -> "Span":
        """What of it lies after a time."""
        return self if at_s <= self.since_s else replace(self, since_s=at_s)


class IdleWarning(Struct, frozen=True, kw_only=True):
    """A valid warning: the idle time that it was given for, when, and when the job ends; None: it does not."""

    since_s: float
    until_s: float
    below_pct: int
    warned_s: float
    ends_s: float | None = None


class Verdict(Enum):
    """What follows for a job."""

    NOTHING = auto()
    WARN = auto()
    LIFT = auto()  # its warning stands no more
    END = auto()


def _of_all(spans: Sequence[Span | None], below_pct: int) -> list[Span]:
    """The spans of all processes by this limit; empty where one has none."""
    known = [span for span in spans if span is not None and span.below_pct == below_pct]
    return known if len(known) == len(spans) else []


def common(spans: Sequence[Span | None], below_pct: int) -> Span | None:
    """When all processes were idle at once, by this limit; None: never, as far as anybody saw, or there are none."""
    known = _of_all(spans, below_pct)
    if not known:
        return None
    found = Span(
        since_s=max(span.since_s for span in known), until_s=min(span.until_s for span in known), below_pct=below_pct
    )
    return found if found.length_s >= 0 else None


def verdict(rule: IdleRule | None, spans: Sequence[Span | None], warned: IdleWarning | None) -> Verdict:
    """What follows for a job with this rule, whose processes have these spans, and which was ``warned``, or was not."""
    idle = None if rule is None else common(spans, rule.below_pct)
    if rule is None or warned is None:
        is_due = rule is not None and idle is not None and idle.length_s >= rule.after_s
        return Verdict.LIFT if warned is not None else Verdict.WARN if is_due else Verdict.NOTHING
    # Another rule than it was warned by: what was said is not what will be done.
    is_other = warned.below_pct != rule.below_pct or (warned.ends_s is not None) != rule.ends
    if is_other or idle is None or idle.since_s > warned.until_s:
        return Verdict.LIFT
    return Verdict.END if warned.ends_s is not None and idle.until_s >= warned.ends_s else Verdict.NOTHING


def is_awaited(
    rule: IdleRule, spans: Sequence[Span | None], warned: IdleWarning | None, known: Span, now: Span
) -> bool:
    """Whether the log must hear that a process is idle until ``now`` and not only until ``known``, one of ``spans``.

    So that a process writes into the log when something may follow, and not with each report.
    """
    if warned is not None:
        return warned.ends_s is not None and known.until_s < warned.ends_s <= now.until_s
    all_spans = _of_all(spans, rule.below_pct)
    if not all_spans:
        return False
    since_s = max(span.since_s for span in all_spans)
    # As `verdict` compares, so that rounding keeps nobody waiting for ever.
    return known.until_s - since_s < rule.after_s <= now.until_s - since_s
