"""Helios logs by chance: users who repeat themselves, CPU jobs, failures that come early, hours of day. Any length."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

START_S = 1_585_699_200  # 2020-04-01, a Wednesday
_GPUS = np.array([1, 2, 4, 8, 16, 32, 64])
_SHARES = np.array([0.62, 0.08, 0.08, 0.17, 0.03, 0.015, 0.005])
_HOURS = np.array([1] * 8 + [4] * 4 + [3] * 2 + [4] * 4 + [3] * 6, dtype=float)


def write_helios_log(
    path: Path, jobs: int, *, days: float = 91.0, vcs: int = 8, users: int = 200, seed: int = 1
) -> Path:
    """A log with ``jobs`` rows, half of which ask for no GPU; jobs wait longer in the first virtual clusters."""
    rng = np.random.default_rng(seed)
    day = rng.integers(0, int(days), jobs)
    hour = rng.choice(24, jobs, p=_HOURS / _HOURS.sum())
    submit_s = np.sort(START_S + day * 86400 + hour * 3600 + rng.integers(0, 3600, jobs))
    gpus = np.where(rng.random(jobs) < 0.5, 0, rng.choice(_GPUS, jobs, p=_SHARES))
    status = rng.choice(3, jobs, p=(0.62, 0.2, 0.18))
    median_s = np.where(gpus > 0, 200.0 * np.sqrt(np.maximum(gpus, 1)) * 4, 5.0) * np.where(status == 2, 0.1, 1.0)
    duration_s = np.minimum(np.exp(rng.normal(np.log(median_s), 1.8)), 30 * 86400).astype(int)
    user = (users * rng.random(jobs) ** 2).astype(int)
    vc = user % vcs
    queue_s = np.where(rng.random(jobs) < 0.2 / (1 + vc), rng.exponential(3600.0, jobs), 0.0).astype(int)
    start_s = submit_s + np.where(gpus > 0, queue_s, 0)
    table = pa.table(
        {
            "job_id": pa.array(np.arange(jobs)),
            "user": _names("u", user),
            "vc": _names("vc", vc),
            "gpu_num": pa.array(gpus),
            "cpu_num": pa.array(np.where(gpus > 0, gpus * 4, 2)),
            "state": pa.array(np.array(["COMPLETED", "CANCELLED", "FAILED"])[status]),
            "submit_time": _dates(submit_s),
            "start_time": _dates(start_s),
            "end_time": _dates(start_s + duration_s),
            "duration": pa.array(duration_s),
        }
    )
    csv.write_csv(table, path, csv.WriteOptions(quoting_style="none"))
    return path


def _names(prefix: str, codes: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.Array:
    return pa.array([f"{prefix}{code}" for code in codes.tolist()])


def _dates(at_s: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.Array:
    return pa.array(np.char.replace(at_s.astype("datetime64[s]").astype(str), "T", " "))
