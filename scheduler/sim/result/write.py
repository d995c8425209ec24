"""Result files of a simulation: jobs as CSV or Parquet, figures as JSON."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from farside.errors import ConfigError
from farside.scheduler.sim.experiment import Outcome, Scene
from farside.scheduler.sim.result.record import WAITING

# In this order; the first nine are what every reader may count on.
JOB_COLUMNS = (
    "job_id", "vc", "submit_s", "gpus", "duration_s", "start_s", "end_s", "queue_s", "preemptions",
    "jct_s", "held_s", "preemption_cost_s", "user", "name", "model",
)  # fmt: skip
_TABLES = (".csv", ".parquet")


def check_table(path: Path | None) -> None:
    """Check that a table file's extension names a known format.

    Raises:
        ConfigError: It has another.
    """
    if path is not None and path.suffix not in _TABLES:
        raise ConfigError(
            f"{path}: cannot write files of type '{path.suffix}'", hint=f"end it in {' or '.join(_TABLES)}"
        )


def write_jobs(path: Path, scene: Scene, outcome: Outcome) -> None:
    """Write one row for each job, in the order of the trace; as Parquet if the file name says so."""
    columns = _columns(scene, outcome)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(dict(columns)), path)
        return
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(map(_plain, values) for values in columns.values()), strict=True))


def _columns(scene: Scene, outcome: Outcome) -> Mapping[str, Sequence[object]]:
    found = outcome.results
    jobs = [entry.job for entry in scene.jobs]
    values: tuple[Sequence[object], ...] = (
        [job.job_id for job in jobs], scene.labels, found.submit_s.tolist(), [job.gpus for job in jobs],
        found.duration_s.tolist(), found.start_s.tolist(), found.end_s.tolist(), found.queue_s.tolist(),
        [int(count) for count in found.preemptions.tolist()], found.jct_s.tolist(), found.held_s.tolist(),
        found.cost_s.tolist(), [job.user for job in jobs], [job.name for job in jobs], [job.model for job in jobs],
    )  # fmt: skip
    return dict(zip(JOB_COLUMNS, values, strict=True))


def _plain(value: object) -> object:
    # 100.0 seconds are 100 in a CSV; what is no whole number keeps all of its digits.
    return int(value) if isinstance(value, float) and math.isfinite(value) and value == int(value) else value


def write_json(path: Path, trace: Mapping[str, object], outcomes: Sequence[Outcome], *, is_comparison: bool) -> None:
    """Write the figures of one run, or of all runs of a comparison by policy, as JSON."""
    found: Mapping[str, object]
    if is_comparison:
        found = {**trace, "policies": {outcome.experiment.name: as_json(outcome) for outcome in outcomes}}
    else:
        found = {**trace, **as_json(outcomes[0])}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def as_json(outcome: Outcome) -> dict[str, object]:
    """All figures of a run; ``all`` holds those of all jobs. What has no value is null. Times are in seconds."""
    found, recording = outcome.results, outcome.recording
    return {
        "policy": outcome.experiment.name,
        "all": found.all,
        "by_vc": found.by_vc,
        "by_bin": found.by_bin,
        "by_scaled_bin": found.by_scaled_bin,
        "by_duration": found.by_group,
        "utilisation": recording.utilisation,
        "fragmentation": recording.fragmentation,
        "avg_waiting_jobs": float(recording.series.mean[WAITING]),
        "peak_waiting_jobs": int(recording.series.peak[WAITING]),
        "events": outcome.events,
        "digest": outcome.digest,
        "estimation": outcome.estimation,
        "settings": _without_infinities(outcome.experiment.settings()),
    }


def _without_infinities(settings: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    # JSON has no infinity, and ``--set`` takes the word.
    return {
        part: {name: "inf" if value == math.inf else value for name, value in fields.items()}
        for part, fields in settings.items()
    }
