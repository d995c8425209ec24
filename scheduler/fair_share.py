"""Fair share: accounts above their share of GPU time go after accounts below theirs. PURE.

How it works
  For each account the GPU seconds that its jobs have held are kept, and fade by half in ``half_life_s``. Every
  ``period_s`` the accounts that have jobs now are compared: an account's part of all that these have used, over its
  part of all their shares. That is what Slurm's simple factor, 2^(-use/share), rests on; there is one level of accounts
  and no fair tree. The ratio is taken in whole steps, its `level`: 0 where use is share, 1 from twice the share on, -1
  from less than the share down to half, and so on to `LOWEST` and `HIGHEST`. Within a level the policy decides alone,
  as within a queue of 2DAS: exact ratios would leave it nothing to decide.

  A job that runs keeps the level that it started with until it stops. So two accounts near their shares do not preempt
  each other back and forth as the ratio crosses 1, and the account that is behind still starts next.
"""

import math
from collections.abc import Iterable, Mapping

from farside.scheduler.tenancy import Tenancy

# Beyond a factor of 16 accounts are not compared further; without use the logarithm would be infinite.
LOWEST, HIGHEST = -4.0, 4.0


def faded_gpu_s(gpus: float, begin_s: float, end_s: float, now_s: float, half_life_s: float) -> float:
    """Faded GPU seconds of GPUs held from one time to another, as of now."""
    if half_life_s == math.inf:
        return gpus * (end_s - begin_s)
    # The integral of 2^(-(now - t) / half_life) over the time held.
    until_end = math.pow(2.0, -(now_s - end_s) / half_life_s)
    since_begin = math.pow(2.0, -(now_s - begin_s) / half_life_s)
    return gpus * (half_life_s / math.log(2)) * (until_end - since_begin)


def levels(used_gpu_s: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, float]:
    """Level of each of these accounts among them."""
    total, parts = sum(used_gpu_s.values()), sum(shares[name] for name in used_gpu_s)
    if total <= 0:
        return dict.fromkeys(used_gpu_s, 0.0)
    return {name: _level(used * parts, total * shares[name]) for name, used in used_gpu_s.items()}


def _level(used: float, due: float) -> float:
    if used <= 0:
        return LOWEST
    return min(HIGHEST, max(LOWEST, float(math.floor(math.log2(used / due)))))


class FairShare:
    """Use and level of each account; the owner of this object reports the time and what accounts hold."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._used_gpu_s: dict[str, float] = {}  # faded up to `_at_s`
        self._held: Mapping[str, int] = {}  # GPUs by account since then
        self._at_s = -math.inf
        self._levels: dict[str, float] = {}
        self.due_s = -math.inf  # when accounts are to be compared anew

    def note_past(self, account: str, gpus: int, begin_s: float, end_s: float, now_s: float) -> None:
        """Add GPUs held before this object existed."""
        self.advance(now_s)
        part = faded_gpu_s(gpus, begin_s, min(end_s, now_s), now_s, self._tenancy.half_life_s)
        self._used_gpu_s[account] = self._used_gpu_s.get(account, 0.0) + part

    def advance(self, now_s: float) -> None:
        """Advance the time; accounts go on holding what they hold."""
        if now_s <= self._at_s:
            return
        half_life_s = self._tenancy.half_life_s
        # Before the first call nothing was used, and there is no time to fade from.
        left = math.pow(2.0, -(now_s - self._at_s) / half_life_s) if self._at_s > -math.inf else 0.0
        for account in self._used_gpu_s:
            self._used_gpu_s[account] *= left
        for account, gpus in self._held.items():
            more = faded_gpu_s(gpus, self._at_s, now_s, now_s, half_life_s)
            self._used_gpu_s[account] = self._used_gpu_s.get(account, 0.0) + more
        self._at_s = now_s

    def hold(self, gpus_of: Mapping[str, int]) -> None:
        """Set what accounts hold from the time of the last `advance` on."""
        self._held = dict(gpus_of)

    def used_gpu_s(self, account: str) -> float:
        """Faded use of an account, at the time of the last `advance`."""
        return self._used_gpu_s.get(account, 0.0)

    def level(self, account: str) -> float:
        """Level of an account; an account that was never compared makes a comparison due."""
        if account not in self._levels:
            self.due_s = -math.inf
        # Until that comparison it counts as an account without use.
        return self._levels.get(account, LOWEST)

    def compare(self, active: Iterable[str], now_s: float) -> frozenset[str]:
        """Compare these accounts; returns the accounts with a new level."""
        self.advance(now_s)
        self.due_s = now_s + self._tenancy.period_s
        used = {account: self.used_gpu_s(account) for account in active}
        found = levels(used, {account: self._tenancy.shares_of(account) for account in used})
        changed = frozenset(account for account, level in found.items() if self._levels.get(account) != level)
        self._levels = found
        return changed
