"""A reservation for the job that has waited longest: a wide gang starts however many small jobs keep coming. PURE.

The papers' rules skip over a job that has no room, and nothing protects a gang that never started [tiresias §3.3.2.3].
Here, once a job has waited ``reserve_after_s`` in one go and no other stands reserved, it goes first:

* it may take the GPUs of every job that may be preempted at all, whatever their order;
* what it can't have yet is held for it: a plan says which GPUs, those of the running jobs that are expected to end
  first, and what of them is free or becomes free goes to nobody else, except to a job whose time limit ends before the
  gang is expected to start (backfill);
* started that way, it is left alone for ``reserve_after_s``.

So every job starts within a bound: `start_bound_s`.
"""

import math

from farside.scheduler.domain import Domain
from farside.scheduler.state import Reservation


def start_bound_s(*, reserve_after_s: float, ahead: int, longest_s: float) -> float:
    """The longest that a job waits for its start, from when it began to wait.

    Args:
        reserve_after_s: The setting.
        ahead: Jobs that waited already when it began to.
        longest_s: The longest that a job holds GPUs that can't be taken from it: its run time where nobody is
            preempted, else the greatest of the time it is left alone and the run time of who may not be preempted.
    """
    return reserve_after_s + (ahead + 1) * longest_s


def expected_free_s(domain: Domain, row: int, now_s: float) -> float:
    """When a running job's GPUs can be had, at the latest: it reaches its limit, or may be preempted."""
    held, job = domain.running[row], domain.jobs[row]
    end_s = held.since_s + job.limit_s
    if domain.traits.is_preemptive and job.preemptible:
        end_s = min(end_s, held.until_s)
    return max(now_s, end_s)


def plan_reservation(domain: Domain, row: int, now_s: float) -> Reservation | None:
    """Which GPUs to hold for a waiting job: those that it would have first. None: the nodes could never hold it."""
    ledger, demand = domain.ledger, domain.demands[domain.groups[row]]
    free_s = {other: expected_free_s(domain, other, now_s) for other in domain.running}
    released: list[int] = []
    at_s = now_s
    allocation = domain.rules.placement.place(ledger, demand)
    for other in sorted(free_s, key=lambda other: (free_s[other], domain.running[other].since_s, other)):
        if allocation is not None:
            break
        held = domain.running[other]
        ledger.give(held.demand, held.allocation)
        released.append(other)
        at_s = free_s[other]
        allocation = domain.rules.placement.place(ledger, demand)
    for other in released:
        ledger.take(domain.running[other].demand, domain.running[other].allocation)
    return None if allocation is None else Reservation(row=row, allocation=allocation, at_s=at_s)


def may_backfill(domain: Domain, reservation: Reservation, row: int, now_s: float) -> bool:
    """Whether a job is sure to be gone before the reserved one is expected to start."""
    return reservation.at_s < math.inf and now_s + domain.jobs[row].limit_s <= reservation.at_s
