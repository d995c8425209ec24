"""Past use that a new scheduler process begins with, from all jobs that the log still has. PURE."""

from farside.scheduler.admission.history import History
from farside.scheduler.admission.rules import Rules
from farside.scheduler.fair_share import FairShare
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.order.catalog import Needs, needs_of
from farside.scheduler.tenancy import Tenancy

# What was used so many half-lives ago counts for less than a millionth.
FORGOTTEN_HALF_LIVES = 20


def fair_share_of(tenancy: Tenancy | None, state: LiveState, now_s: float) -> FairShare | None:
    """The accounts' use as of now; None where accounts are not compared."""
    if tenancy is None or not tenancy.half_life_s:
        return None
    share = FairShare(tenancy)
    share.advance(now_s)
    since_s = now_s - FORGOTTEN_HALF_LIVES * tenancy.half_life_s
    for job in state.jobs.values():
        account = job.spec.account or job.user
        for run_interval in job.stints:
            if run_interval.end_s > since_s:
                share.note_past(account, job.spec.gpus, run_interval.begin_s, run_interval.end_s, now_s)
    return share


def history_of(rules: Rules, state: LiveState) -> History:
    """History of the policies from the ended jobs that are still known, in the order of their ends.

    They are looked through only for a policy that needs them: of some hundred thousand jobs that takes a moment.
    """
    history = History(rules.order, rules.placement)
    if needs_of(rules.order) is Needs.ENDED_JOBS:
        ended = [job for job in state.jobs.values() if job.is_over and job.held_s > 0]
        for job in sorted(ended, key=lambda job: (job.end_s, job.sequence)):
            history.add(service_gpu_s(job))
    return history


def service_gpu_s(job: LiveJob) -> float:
    """GPU seconds that a job had in all, once it is over."""
    return job.held_s * job.spec.gpus
