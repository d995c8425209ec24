"""What accounts had used when a brain began to lead, from the jobs' stints. PURE."""

from farside.scheduler.fair_share import FairShare
from farside.scheduler.live.live_state import LiveState
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
        for stint in job.stints:
            if stint.end_s > since_s:
                share.note_past(account, job.spec.gpus, stint.begin_s, stint.end_s, now_s)
    return share
