"""Run times of generated jobs: named distributions, given by their quantiles. PURE.

A quantile function turns evenly spread numbers into durations, so that whoever draws those numbers decides which jobs
resemble each other (generate.py), and the distribution comes out the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from farside.scheduler.table import Floats

DAY_S = 86400.0


class Service(Protocol):
    """A distribution of durations."""

    def quantile_s(self, share: Floats) -> Floats:
        """The durations that these shares of all jobs, each from 0 to 1, do not exceed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """A log-normal, cut at both ends. ``sigma``: of the logarithm; 0 makes all jobs equally long."""

    median_s: float = 600.0
    sigma: float = 2.0
    min_s: float = 1.0
    max_s: float = 30 * DAY_S

    def __post_init__(self) -> None:
        _check_ends(self.min_s, self.max_s)
        if not self.min_s <= self.median_s <= self.max_s:
            raise ValueError(f"median_s must be from min_s to max_s, is {self.median_s:g}")
        if not 0 <= self.sigma <= 20:
            raise ValueError(f"sigma must be from 0 to 20, is {self.sigma:g}")

    def quantile_s(self, share: Floats) -> Floats:
        """Quantiles of the part between the ends."""
        if not self.sigma:
            return np.full(len(share), self.median_s)
        low, high = (ndtr(math.log(end / self.median_s) / self.sigma) for end in (self.min_s, self.max_s))
        inside: Floats = self.median_s * np.exp(self.sigma * ndtri(low + (high - low) * share))
        return np.clip(inside, self.min_s, self.max_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedPareto:
    """A power law between two ends: the chance to run longer than x falls as x to the power of minus ``alpha``."""

    alpha: float = 1.0
    min_s: float = 60.0
    max_s: float = 7 * DAY_S

    def __post_init__(self) -> None:
        _check_ends(self.min_s, self.max_s)
        if not 0.01 <= self.alpha <= 100:
            raise ValueError(f"alpha must be from 0.01 to 100, is {self.alpha:g}")

    def quantile_s(self, share: Floats) -> Floats:
        """Exactly."""
        kept: Floats = 1 - share * (1 - (self.min_s / self.max_s) ** self.alpha)
        return np.clip(self.min_s * kept ** (-1 / self.alpha), self.min_s, self.max_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """No heavy tail at all, for comparison."""

    mean_s: float = 600.0
    max_s: float = 30 * DAY_S

    def __post_init__(self) -> None:
        if not 0 < self.mean_s <= self.max_s < math.inf:
            raise ValueError(f"mean_s must be above 0 and at most max_s, is {self.mean_s:g}")

    def quantile_s(self, share: Floats) -> Floats:
        """Quantiles of the part up to ``max_s``."""
        below_max = -math.expm1(-self.max_s / self.mean_s)
        inside: Floats = -self.mean_s * np.log1p(-share * below_max)
        return inside


def _check_ends(min_s: float, max_s: float) -> None:
    if not 0 < min_s <= max_s <= 36500 * DAY_S:
        raise ValueError(f"min_s must be above 0 and at most max_s, is {min_s:g}")


# What a user can name and set, by ``--service NAME:key=value``.
KINDS: Mapping[str, type[Lognormal] | type[BoundedPareto] | type[Exponential]] = MappingProxyType(
    {"lognormal": Lognormal, "pareto": BoundedPareto, "exponential": Exponential}
)

PRESETS: Mapping[str, Service] = MappingProxyType(
    {
        # Median 206 s, mean 6,652 s, at most 50 days, of Helios's GPU jobs [helios §2.3, §3.2.1]: sigma gives the mean.
        "helios": Lognormal(median_s=206.0, sigma=2.69, max_s=50 * DAY_S),
        # Mean 28,329 s, at most 60 days [helios Table 2]; a median of 25 minutes, of Philly's jobs made public.
        "philly": Lognormal(median_s=1510.0, sigma=2.54, max_s=60 * DAY_S),
        # From 2 minutes to 2 hours [tiresias §3.5.1]; the power is ours, see catalog.py.
        "tiresias": BoundedPareto(alpha=1.0, min_s=120.0, max_s=7200.0),
    }
)
