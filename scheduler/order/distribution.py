"""Distribution of the service of past jobs, and the Gittins index of a job from it. PURE.

[tiresias Pseudocode 1] S is the service of a job in GPU seconds, known from n samples; a job has attained a. For a
quantum Delta, the index is the chance that it ends within it over the service that trying costs::

    G(a, Delta) = P(S - a <= Delta | S > a) / E[min(S - a, Delta) | S > a]

How it works
  Let ended(x) be how many samples are at most x, and served(x) the sum of min(S, x) over all. Then both P and E have
  the survivors of a below the line, which cancel::

    G(a, Delta) = (ended(a + Delta) - ended(a)) / (served(a + Delta) - served(a))

  which is the slope between two points of the curve (served, ended). Sums over the sorted samples give either point by
  one binary search, so an index costs O(log n) and is exact. A few are computed one by one, with the same operations:
  a call on an array costs more than all that it does for one job.

  The best Delta ends at a sample: between two samples the cost grows and the chance does not. So the supremum is the
  steepest slope from the point of a to the point of any later sample, a tangent to the upper hull of those. The hulls
  of all suffixes share their links, a tree, and slopes fall along a chain of links: jumps over 1, 2, 4 ... links find
  the tangent in O(log n). They are made when first asked for, in O(n log n).

A job that has attained more than every sample has index 0: nothing says that it will ever end. Just below a sample the
supremum grows without bound (a moment more, and a job in n ends for sure): a property of the definition on samples,
not of jobs, and a reason to prefer a quantum of fixed length where there are few.
"""

from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farside.scheduler.table import Floats, Rows

# Services are fractions of seconds times GPUs: samples are kept to a millionth, and a job that is nearer than half of
# that to one has reached it.
DECIMALS = 6
EDGE_GPU_S = 5e-7
# Up to so many are computed one by one.
FEW = 8


class Distribution:
    """An empirical distribution of jobs' whole services, never changed once made.

    Args:
        services_gpu_s: A sample a job, GPU seconds, in any order.
    """

    def __init__(self, services_gpu_s: Iterable[float] = ()) -> None:
        self.samples: Floats = np.sort(np.round(np.fromiter(services_gpu_s, dtype=np.float64), DECIMALS))
        assert not len(self.samples) or self.samples[0] >= 0, "a service is a number of at least 0"
        self._sums = np.concatenate(([0.0], np.cumsum(self.samples)))
        self._listed: list[float] = self.samples.tolist()
        self._listed_sums: list[float] = self._sums.tolist()

    def __len__(self) -> int:
        return len(self._listed)

    def index(self, attained_gpu_s: Floats, delta_gpu_s: Floats) -> Floats:
        """The Gittins index for given quanta, per GPU second; infinite quanta ask for the inverse of what is left."""
        if not len(self):
            return np.zeros(len(attained_gpu_s))
        if len(attained_gpu_s) <= FEW:
            few = zip(attained_gpu_s.tolist(), delta_gpu_s.tolist(), strict=True)
            return np.array([self._index_of_one(attained, delta) for attained, delta in few])
        # Beyond the last sample nothing ends and nothing is served; an infinite quantum ends there as well.
        after_gpu_s = np.minimum(attained_gpu_s + delta_gpu_s, self.samples[-1])
        (ended, served), (ended_after, served_after) = self._at(attained_gpu_s), self._at(after_gpu_s)
        return _slope(served_after - served, ended_after - ended)

    def _index_of_one(self, attained_gpu_s: float, delta_gpu_s: float) -> float:
        samples, sums = self._listed, self._listed_sums
        after_gpu_s = min(attained_gpu_s + delta_gpu_s, samples[-1])
        ended = bisect_right(samples, attained_gpu_s + EDGE_GPU_S)
        ended_after = bisect_right(samples, after_gpu_s + EDGE_GPU_S)
        served = sums[ended] + attained_gpu_s * (len(samples) - ended)
        cost = sums[ended_after] + after_gpu_s * (len(samples) - ended_after) - served
        return (ended_after - ended) / cost if cost > 0 else 0.0

    def best_index(self, attained_gpu_s: Floats) -> Floats:
        """The Gittins index by its definition, the supremum over all quanta, per GPU second."""
        if not len(self):
            return np.zeros(len(attained_gpu_s))
        hulls = self._hulls
        ended, served = self._at(attained_gpu_s)
        at = np.searchsorted(hulls.values, attained_gpu_s + EDGE_GPU_S, side="right")
        is_beyond = at == len(hulls.values)
        at[is_beyond] = 0

        def slope(to: Rows) -> Floats:
            return _slope(hulls.served[to] - served, hulls.ended[to] - ended)

        # The longest jump first: on, as long as the next link of the hull is steeper than the slope from here.
        for jump in reversed(hulls.jumps):
            there = jump[at]
            at = np.where(slope(there) < hulls.slope_on[there], there, at)
        tangent = np.where(slope(at) < hulls.slope_on[at], hulls.jumps[0][at], at)
        return np.where(is_beyond, 0.0, slope(tangent))

    def _at(self, service_gpu_s: Floats) -> tuple[Floats, Floats]:
        """Points of the curve: how many samples are at most this, and the sum of all up to this."""
        ended = self.samples.searchsorted(service_gpu_s + EDGE_GPU_S, side="right")
        served: Floats = self._sums[ended] + service_gpu_s * (len(self) - ended)
        return ended.astype(np.float64), served

    @cached_property
    def _hulls(self) -> "_Hulls":
        values = np.unique(self.samples)
        ended, served = self._at(values)
        following, slope_on = _chains(served.tolist(), ended.tolist())
        jumps = [np.array(following, dtype=np.intp)]
        while 1 << len(jumps) < len(values):
            jumps.append(jumps[-1][jumps[-1]])
        return _Hulls(values, ended, served, np.array(slope_on), tuple(jumps))


class _Hulls(NamedTuple):
    """The points of all distinct samples, and the upper hull of each suffix of them as a chain of links."""

    values: Floats
    ended: Floats
    served: Floats
    slope_on: Floats  # to the next in the chain; below every slope at its end
    jumps: tuple[NDArray[np.intp], ...]  # 1, 2, 4 ... links on; the end is its own next


def _chains(served: list[float], ended: list[float]) -> tuple[list[int], list[float]]:
    """For each point the next one on the upper hull of itself and all later ones, and the slope to it."""
    last = len(served) - 1
    following, slope_on = [last] * (last + 1), [-1.0] * (last + 1)
    for at in range(last - 1, -1, -1):
        to = at + 1
        slope = (ended[to] - ended[at]) / (served[to] - served[at])
        while slope <= slope_on[to]:
            to = following[to]
            slope = (ended[to] - ended[at]) / (served[to] - served[at])
        following[at], slope_on[at] = to, slope
    return following, slope_on


def _slope(cost: Floats, reward: Floats) -> Floats:
    return np.divide(reward, cost, out=np.zeros_like(reward), where=cost > 0)
