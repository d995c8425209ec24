"""Report of one or more runs: one HTML file with tables and pictures."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from farside.scheduler.sim.experiment import Outcome, Scene
from farside.scheduler.sim.result.report_page import page
from farside.scheduler.sim.result.report_plot import (
    fragmentation_over_time,
    jct_distribution,
    node_timeline,
    queue_over_time,
    utilisation_over_time,
)


def write_report(path: Path, *, title: str, facts: Sequence[str], scene: Scene, outcomes: Sequence[Outcome]) -> None:
    """Write the report's file."""
    text = page(
        title=title, facts=facts, outcomes=outcomes, pictures=_pictures(outcomes),
        timelines=list(_timelines(scene, outcomes)),
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")


def _pictures(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str]]:
    return [
        ("Completion times", "Share of jobs that were done after so many seconds.", jct_distribution(outcomes)),
        ("Utilisation", "GPUs in use, of those that were there.", utilisation_over_time(outcomes)),
        ("Queue", "Jobs that waited, first-timers and preempted ones.", queue_over_time(outcomes)),
        (
            "Fragmentation",
            "GPUs that were free and yet of no use to a job of a whole node, of all that were there.",
            fragmentation_over_time(outcomes),
        ),
    ]


def _timelines(scene: Scene, outcomes: Sequence[Outcome]) -> Iterable[tuple[str, str, str]]:
    gpus_of = [entry.job.gpus for entry in scene.jobs]
    for at, outcome in enumerate(outcomes):
        shown, count = len(outcome.recording.segments), outcome.recording.all_segments
        if not shown:
            continue
        told = "Each bar is a job on GPUs of a node; what is blank was free."
        if shown < count:
            shortest_s = min(one.end_s - one.start_s for one in outcome.recording.segments)
            told += f" The {shown} longest of {count} are drawn, those of {shortest_s:,.0f} s and more."
        yield outcome.experiment.name, told, node_timeline(outcomes, at, gpus_of)
