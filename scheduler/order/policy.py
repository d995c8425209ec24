"""Interface of order policies. PURE.

A policy answers for many jobs at once: columns of figures in, columns of keys out. The job with the smallest keys goes
first, compared from the first column to the last; equal ones go by submit time, then by sequence. What a key may depend
on is what `JobColumns` has, so a waiting job's keys stand still until something happens to it; a running job's may move
with the time. What a policy learns from jobs that ended makes it another policy, and all waiting jobs are ranked again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from farside.scheduler.table import Floats, JobColumns

Motions = NDArray[np.int8]


# How a running job's keys move by themselves, up to the time that the policy's ``next_change_s`` tells. Numbers and no
# enumeration: they are compared for each job at each cycle.
STILL = 0
FALLING = 1  # they may fall, never grow
FREE = 2  # any way; or a key is NaN, which compares with nothing
INNER = 3  # any way, but for the first key, which stands still; the others are finite

EDGE_S = 1e-6
"""A clock may report a time so much too early: fractions of seconds do not add up exactly."""
NEAR_S = 2e-6
"""A threshold so near is reached: a clock may be early, and seconds since 1970 are rounded to a quarter of `EDGE_S`."""

KEPT_JOBS = 100_000
"""How many ended jobs count, the newest. The share of them that took less than any time is off by less than half a
percent, with 95 % confidence (the inequality of Dvoretzky, Kiefer and Wolfowitz): more would tell nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTraits:
    """How the cycle treats jobs under a policy.

    Attributes:
        is_preemptive: A job may take the GPUs of running jobs that stand behind it.
        is_sparing_equals: It takes them from lower priorities only, whatever its rank.
        is_counting_first: Running jobs stop by a count of GPUs, before anybody is placed: in the order of all jobs each
            is counted to the cluster's GPUs if as many are left, and a running one for which too few are left stops.
        is_strict: The first job that has no room blocks all behind it.
        is_steady: A running job's keys never grow but at the times that ``next_change_s`` tells.
        has_thresholds: ``next_change_s`` tells of times at all, and is asked for them.
        is_keyed_by_position: Keys use the job's place in the list of its queue, which the cycle then keeps.
        is_ageing: What ``next_change_s`` tells of a job that waits counts from its submission on, not only once it
            has run.
    """

    is_preemptive: bool = False
    is_sparing_equals: bool = False
    is_counting_first: bool = False
    is_strict: bool = False
    is_steady: bool = True
    has_thresholds: bool = False
    is_keyed_by_position: bool = False
    is_ageing: bool = False


class OrderPolicy(Protocol):
    """Order policy: decides which job goes first."""

    @property
    def name(self) -> str:
        """What ``--policy`` calls it."""
        ...

    @property
    def traits(self) -> OrderTraits:
        """How the cycle treats jobs under it."""
        ...

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Keys by which jobs are ordered, smallest first; one value for each job in each key."""
        ...

    def motion(self, jobs: JobColumns) -> Motions:
        """`STILL`, `FALLING`, `FREE` or `INNER` for each running job: which of them a cycle must rank again."""
        ...

    def next_change_s(self, jobs: JobColumns) -> Floats:
        """Seconds from now until the cycle should look again because a job crossed a threshold; infinite: never.

        Only for what happens by itself while the job stays in its phase. Once a threshold counts as reached for the
        keys, this is about the one after, more than a millisecond later: by that the domain notices it. Keys that drift
        without a threshold are read whenever something else makes the cycle run.
        """
        ...

    def promotes(self, jobs: JobColumns) -> Floats:
        """1.0 for each starved job that goes back to the first queue with its figures at zero, 0.0 for the others."""
        ...

    def learn(
        self, ended_gpu_s: Sequence[float], expected_gpu_s: Sequence[float] = (), *, seen: int = 0
    ) -> "OrderPolicy":
        """The policy once all these jobs have ended: their services in GPU seconds, in the order of their ends.

        ``expected_gpu_s`` is what was expected of the same jobs, NaN where nothing was; empty where nobody kept it.
        ``seen``: how many jobs have ended in all, where these are only the newest of them, at least `KEPT_JOBS`; 0: no
        more than these.
        Itself, the same object, as long as they change nothing for it. Asked whenever a job has ended, so it must
        answer that at once.
        """
        ...

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """Why the first job (columns of one job each) goes before the second, in words for an operator."""
        ...
