"""Accuracy of forecasts: error, coverage and loss. PURE."""

import numpy as np

from farside.scheduler.table import Floats


def smape_pct(forecast: Floats, came: Floats) -> float:
    """Symmetric mean absolute percentage error, 0 to 200; of those that are known. NaN: none is. [helios §4.3.2]"""
    known = np.isfinite(forecast) & np.isfinite(came) & (np.abs(forecast) + np.abs(came) > 0)
    if not known.any():
        return float("nan")
    return float(np.mean(200 * np.abs(forecast - came)[known] / (np.abs(forecast) + np.abs(came))[known]))


def coverage(level: Floats, came: Floats) -> float:
    """The share of what came that did not exceed a forecast level; NaN: nothing is known."""
    known = np.isfinite(level) & np.isfinite(came)
    return float((came[known] <= level[known]).mean()) if known.any() else float("nan")


def pinball(level: Floats, came: Floats, quantile: float) -> float:
    """The mean loss of a forecast quantile, in nodes: what lacked times the quantile, the excess times the rest."""
    known = np.isfinite(level) & np.isfinite(came)
    gap = came[known] - level[known]
    return float(np.maximum(quantile * gap, (quantile - 1) * gap).mean()) if known.any() else float("nan")
