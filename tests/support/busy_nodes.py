"""Series of busy nodes: made ones, and the real ones where this machine has them."""

from pathlib import Path

import numpy as np
import pytest

from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.table import Floats
from tests.support.traces import CLUSTER_DATA


def series_of(active: Floats | list[float], total: float = 100.0, step_s: float = 600.0) -> NodeSeries:
    """Busy nodes of a cluster that never changes, from a Monday on."""
    values = np.asarray(active, dtype=float)
    return NodeSeries(
        start_s=4 * 86400.0,
        step_s=step_s,
        active=values,
        total=np.full(len(values), total),
        is_gap=np.zeros(len(values), dtype=np.bool_),
    )


def wandering(days: int, *, seed: int = 1, total: float = 100.0) -> NodeSeries:
    """Demand with a day in it, that wanders and jumps as a cluster's does."""
    chance = np.random.default_rng(seed)
    steps = days * 144
    day = 8 * np.sin(np.arange(steps) / 144 * 2 * np.pi)
    jumps = np.where(chance.random(steps) < 0.02, chance.normal(0, 12, steps), 0)
    level, values = 60.0, np.empty(steps)
    for step in range(steps):
        level += 0.01 * (60 - level) + chance.normal(0, 0.8) + jumps[step]
        values[step] = level + day[step]
    return series_of(np.clip(np.round(values), 1, total), total)


def real_files(pattern: str) -> list[Path]:
    """Real series; skips where there are none."""
    found = sorted((CLUSTER_DATA / "nodes").glob(pattern))
    if not found:
        pytest.skip("no real series of busy nodes on this machine")
    return found
