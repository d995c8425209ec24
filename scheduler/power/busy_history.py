"""Number of busy nodes before the manager started, for energy policies that learn from the past. PURE.

So a policy that has to watch for a day before it promises anything does not begin anew with each restart.
"""

import math
from dataclasses import dataclass

from farside.errors import ConfigError
from farside.scheduler.energy.learning_policy import PAST_S
from farside.scheduler.energy.seen_series import KEPT_STEPS

# What nobody saw is taken to be as it was, up to a week; a past before a longer silence tells nothing of the hours now.
LONGEST_SILENCE_S = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPast:
    """Busy nodes by interval, the newest last, up to ``end_s``, kept over a restart. ``of``: the set of nodes."""

    of: str
    end_s: float
    step_s: float
    active: tuple[float, ...]


def kept_steps(step_s: float) -> int:
    """Number of intervals to keep."""
    return min(KEPT_STEPS, math.ceil(PAST_S / step_s))


def continued(past: KeptPast, of: str, now_s: float, step_s: float) -> tuple[float, ...]:
    """A kept past, continued until now: gaps get the last known value.

    Raises:
        ConfigError: It makes no sense, is not of these nodes and such intervals, or ended more than a week ago.
    """
    if past.of != of:
        raise ConfigError(f"it is of other nodes, those of {past.of!r}")
    if not past.active or not all(0 <= active < math.inf for active in past.active):
        raise ConfigError("its numbers of busy nodes are none")
    if past.step_s != step_s:
        raise ConfigError(f"its intervals are of {past.step_s:g} s, not {step_s:g} s")
    if not past.end_s <= now_s + step_s:
        raise ConfigError("it ends in the future: a clock was set back")
    if now_s - past.end_s > LONGEST_SILENCE_S:
        raise ConfigError(f"it ended more than {LONGEST_SILENCE_S / 86400:g} days ago")
    missed = math.floor(max(0.0, now_s - past.end_s) / step_s)
    return (past.active + past.active[-1:] * missed)[-kept_steps(step_s) :]


def past_begin_s(first_s: float, now_s: float, step_s: float) -> float:
    """Start of the past that a policy learns from: at most `PAST_S` ago, in whole intervals before now."""
    known_s = min(PAST_S, max(0.0, now_s - first_s))
    return now_s - math.floor(known_s / step_s) * step_s
