"""Priority and fair share, which go before any order policy. PURE.

Jobs go by the priority of their QOS, then by the level of their account (fair_share.py), then as the policy says. Where
the policy preempts nobody, a running job goes before all that wait with its priority: only a higher one takes its GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from farside.scheduler.order.policy import Motions, OrderPolicy, OrderTraits
from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantOrder:
    """A policy inside priorities and levels. The keys before the policy's own do not change while a job runs."""

    inner: OrderPolicy

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.inner.name

    @property
    def traits(self) -> OrderTraits:
        """Those of the policy; but a higher priority always preempts."""
        inner = self.inner.traits
        return replace(inner, is_preemptive=True, is_sparing_equals=not inner.is_preemptive)

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Priority, then running before waiting if the policy never preempts, then level, then the policy's keys."""
        # Smallest first, and a higher priority goes before.
        before: tuple[Floats, ...] = (-jobs.priority,)
        if not self.inner.traits.is_preemptive:
            before += (1.0 - jobs.is_running,)
        return (*before, jobs.share_level, *self.inner.keys(jobs))

    def motion(self, jobs: JobColumns) -> Motions:
        """The policy's."""
        return self.inner.motion(jobs)

    def next_change_s(self, jobs: JobColumns) -> Floats:
        """The policy's."""
        return self.inner.next_change_s(jobs)

    def promotes(self, jobs: JobColumns) -> Floats:
        """The policy's."""
        return self.inner.promotes(jobs)

    def learn(
        self, ended_gpu_s: Sequence[float], expected_gpu_s: Sequence[float] = (), *, seen: int = 0
    ) -> "TenantOrder":
        """Itself, or with the policy as it is now."""
        inner = self.inner.learn(ended_gpu_s, expected_gpu_s, seen=seen)
        return self if inner is self.inner else replace(self, inner=inner)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """By what they differ first."""
        if first.priority[0] != second.priority[0]:
            return f"has priority {first.priority[0]:g} by its QOS, not {second.priority[0]:g}"
        if not self.inner.traits.is_preemptive and first.is_running[0] != second.is_running[0]:
            return f"runs, and {self.name} preempts no job of its own priority"
        if first.share_level[0] != second.share_level[0]:
            return "is of an account that has used less of its share"
        return self.inner.why(first, second)
