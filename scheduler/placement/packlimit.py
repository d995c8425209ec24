"""PACKLIMIT learned from the cluster's own jobs. PURE. [tiresias §3.3.3.3]

"We use a simple linear classifier to periodically determine the PACKLIMIT value using a job's placement and
corresponding performance as features." The text says no more; this is ours:

* A sample is a job that ran: its S_J, how far it was spread, and how fast it was there, 1 being its speed when
  consolidated. It suffered if it was slower than ``1 - tolerance``.
* The classifier is linear in skew and spread, a support vector machine: of all lines between those that suffered and
  those that did not, the one with the widest gap to both. The two kinds count alike, however many of each there are,
  and errors are counted by their square, so that a few noisy samples don't decide.
* PACKLIMIT is the skew where that line crosses the mean spread of the jobs that were spread.

With only one kind there is no line, and PACKLIMIT stays as it is. So it is too where PACKLIMIT does its work: sensitive
jobs are then never spread, and nobody sees them suffer. What is learned is of use where jobs were placed without
regard to their skew, at first, or now and then.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from farside.scheduler.placement.slowdown_sample import Sample

# So wide that what can be separated is; narrower where it can't be. In units of one sample's squared error.
SOFTNESS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """PACKLIMIT, with its origin.

    Attributes:
        packlimit: From 0 to 1.
        is_learned: Whether the history had both kinds of jobs; otherwise this is the old one.
        mistaken: Share of the samples on the wrong side of the line.
        reason: In words.
    """

    packlimit: float
    is_learned: bool
    mistaken: float
    reason: str


def learn_packlimit(history: Collection[Sample], *, current: float, tolerance: float = 0.1) -> Learned:
    """Learn PACKLIMIT from ended jobs.

    Args:
        history: In any order; the result does not depend on it.
        current: What PACKLIMIT is, and stays if the history does not say.
        tolerance: The loss of speed that counts as suffering, a share; above what measuring scatters.
    """
    # Sums of floats depend on their order; sorted, the result does not depend on that of the jobs.
    ordered = sorted(history, key=lambda sample: (sample.skew, sample.spread, sample.speed))
    suffers = np.array([sample.speed < 1 - tolerance for sample in ordered], dtype=bool)
    spread = np.array([sample.spread for sample in ordered])
    if not suffers.any() or suffers.all():
        kind = "suffered" if suffers.any() else "suffered from its allocation"
        who = "every job" if suffers.any() else "no job"
        return Learned(packlimit=current, is_learned=False, mistaken=0.0, reason=f"{who} {kind}")
    features = np.column_stack([[sample.skew for sample in ordered], spread])
    weights = _widest_gap(features, np.where(suffers, 1.0, -1.0))
    mistaken = float(np.mean((features @ weights[:2] + weights[2] > 0) != suffers))
    if weights[0] <= 0:
        reason = "jobs of greater skew did not suffer more: skew does not tell who should be consolidated"
        return Learned(packlimit=current, is_learned=False, mistaken=mistaken, reason=reason)
    limit = -(weights[2] + weights[1] * spread[spread > 0].mean()) / weights[0]
    reason = f"{int(suffers.sum())} of {len(ordered)} jobs suffered, {mistaken:.0%} on the wrong side of the line"
    return Learned(packlimit=min(1.0, max(0.0, float(limit))), is_learned=True, mistaken=mistaken, reason=reason)


def _widest_gap(features: NDArray[np.float64], sides: NDArray[np.float64]) -> NDArray[np.float64]:
    """The line's two weights and its constant; positive on the side of 1."""
    importance = np.where(sides > 0, 1 / np.sum(sides > 0), 1 / np.sum(sides < 0))
    columns = np.column_stack([features, np.ones(len(features))])

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        short = np.maximum(0.0, 1 - sides * (columns @ weights))
        slope = -2 * SOFTNESS * ((importance * sides * short) @ columns)
        slope[:2] += weights[:2]
        return float(weights[:2] @ weights[:2] / 2 + SOFTNESS * (importance @ short**2)), slope

    found = minimize(loss, np.zeros(3), jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return np.asarray(found.x, dtype=float)
