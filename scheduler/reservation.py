"""Reservation for the longest-waiting job, so that a wide gang starts although small jobs keep coming. PURE.

The papers' rules skip over a job that has no room, and nothing protects a gang that never started [tiresias §3.3.2.3].
Here, once a job has waited ``reserve_after_s`` in one go and no other stands reserved, it goes first:

* it may take the GPUs of every job that may be preempted at all, whatever their order;
* what it can't have yet is held for it: a plan says which GPUs, those of the running jobs that are expected to end
  first, and what of them is free or becomes free goes to nobody else, except to a job whose time limit ends before the
  gang is expected to start (backfill); what others may take of running jobs is only what the plan does not count on;
* started that way, it is left alone for ``reserve_after_s``.

So every job starts within ``reserve_after_s``, and the longest that a job holds GPUs that can't be taken from it, once
for itself and once for each job that waited before it.
"""

import math
from operator import itemgetter

from farside.scheduler.domain import Domain, Held
from farside.scheduler.state import Allocation, Reservation


def expected_free_s(domain: Domain, row: int, claimant: int, now_s: float) -> float:
    """Latest time at which a job may have a running job's GPUs: at its limit, or when it may be preempted."""
    held = domain.running[row]
    end_s = held.since_s + domain.jobs[row].limit_s
    if domain.book.may_displace(claimant, row):
        end_s = min(end_s, held.until_s)
    return max(now_s, end_s)


def plan_reservation(domain: Domain, row: int, now_s: float) -> Reservation | None:
    """Plan which GPUs to hold for a waiting job: those it would have first. None: the nodes can never hold it.

    Guests of other domains leave at any time.
    """
    ledger = domain.ledger
    leaving = [(now_s, guest.since_s, other, guest) for other, (_, guest) in domain.guests.items()]
    leaving += [
        (expected_free_s(domain, other, row, now_s), held.since_s, other, held)
        for other, held in domain.running.items()
    ]
    # Ties by start and row, so that equal states give equal plans.
    leaving.sort(key=itemgetter(0, 1, 2))
    awaited: dict[int, float] = {}
    released: list[Held] = []
    at_s = now_s
    allocation = domain.book.place(row, now_s)
    for free_s, since_s, other, held in leaving:
        if allocation is not None:
            break
        ledger.give(held.demand, held.allocation)
        released.append(held)
        # The time of the start as well: a job that was preempted and runs again has left (`_still_awaited`).
        awaited[other] = since_s
        at_s = free_s
        allocation = domain.book.place(row, now_s)
    for held in released:
        ledger.take(held.demand, held.allocation)
    return None if allocation is None else Reservation(row=row, allocation=allocation, at_s=at_s, awaited=awaited)


class Claim:
    """Claim of a reservation on free GPUs, beyond those held for it, while jobs are preempted in a plan.

    On each node the claim is what the jobs that are awaited there will not leave to it later. So an awaited job leaves
    its GPUs to the reservation, and any other job leaves its GPUs to all. Without a reservation the claim is empty.
    """

    def __init__(self, domain: Domain, held: Allocation) -> None:
        reservation = domain.reservation
        self._free = domain.ledger.free
        self._awaited = {} if reservation is None else _still_awaited(domain, reservation)
        self._lacking = {} if reservation is None else dict(reservation.allocation)
        for at, gpus in held:
            self._lacking[at] -= gpus
        for other in self._awaited.values():
            self._count(other, -1)

    def leave(self, row: int) -> None:
        """Note that this job is to be preempted."""
        if row in self._awaited:
            self._count(self._awaited[row], 1)

    def owing(self) -> Allocation:
        """Free GPUs that must be held now."""
        free = self._free
        return tuple((at, min(gpus, free[at])) for at, gpus in self._lacking.items() if gpus > 0 and free[at] > 0)

    def _count(self, held: Held, times: int) -> None:
        for at, gpus in held.allocation:
            if at in self._lacking:
                self._lacking[at] += times * gpus


def _still_awaited(domain: Domain, reservation: Reservation) -> dict[int, Held]:
    """Jobs that the reservation still waits for, and what each holds."""
    found: dict[int, Held] = {}
    for row, since_s in reservation.awaited.items():
        held = domain.guests[row][1] if row in domain.guests else domain.running.get(row)
        if held is not None and held.since_s == since_s:
            found[row] = held
    return found


def may_backfill(domain: Domain, reservation: Reservation, row: int, now_s: float) -> bool:
    """Whether a job surely ends before the reserved job is expected to start."""
    return reservation.at_s < math.inf and now_s + domain.jobs[row].limit_s <= reservation.at_s
