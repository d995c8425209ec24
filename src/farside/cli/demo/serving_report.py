"""The tables of the demo's serving scenes."""

from collections.abc import Sequence

from rich.console import Console

from farside.cli.demo import serving_cluster
from farside.cli.demo.serving import ServingScene, scene_faults
from farside.cli.demo.serving_cluster import ClusterScene
from farside.cli.demo.serving_load import Result
from farside.cli.figure_table import figure_table
from farside.serve.status import ServeStatus


def print_scene(console: Console, scene: ServingScene) -> int:
    """Prints planned against achieved, and what was wrong; the exit code."""
    _print_phases(console, scene)
    _print_plans(console, scene.status)
    _print_counts(console, scene.result)
    return _print_faults(console, scene_faults(scene))


def print_cluster_scene(console: Console, scene: ClusterScene) -> int:
    """Prints planned against achieved and leases, and what was wrong; the exit code."""
    served = scene.served
    _print_phases(console, served)
    _print_plans(console, served.status)
    places = ", ".join(f"job {job} on {node}" for job, node in scene.leases.items())
    console.print(
        f"leases: {places}; {scene.drained} was drained, {scene.reserved} reserved; "
        f"{scene.extended} times a lease went on; {3600 * scene.gpu_hours:.0f} GPU seconds counted; "
        f"process {served.killed.pid} on {served.killed.node}, an executor, was killed",
        highlight=False,
    )
    _print_counts(console, served.result)
    return _print_faults(console, serving_cluster.scene_faults(scene))


def _print_phases(console: Console, scene: ServingScene) -> None:
    table = figure_table("phase", "model", "SLO", "sent", "answered in time", "violated", texts=2)
    for phase in scene.phases:
        seconds = phase.until_s - phase.since_s
        for model in sorted(phase.rates):
            counts = scene.result.counts(model, phase.since_s, phase.until_s)
            violated = scene.result.violated_share(model, phase.since_s, phase.until_s)
            table.add_row(
                phase.name, model, f"{scene.mix.slo_ms[model]:g} ms", f"{counts.total() / seconds:.1f}/s",
                f"{counts['met'] / seconds:.1f}/s", f"{100 * violated:.2f} %",
            )  # fmt: skip
    console.print(table)


def _print_plans(console: Console, status: ServeStatus) -> None:
    plans = figure_table("new plan", "devices", "sum of parts", "started", "resized", "closed", "took")
    for one in status.changes:
        took_s = one.plan_s + one.prepare_s + one.drain_s
        plans.add_row(
            one.cause, f"{one.gpus}", f"{one.part_pct} %", f"{one.prepared}", f"{one.resized}", one.closed_words,
            one.problem or f"{took_s:.1f} s",
        )  # fmt: skip
    console.print(plans)


def _print_counts(console: Console, result: Result) -> None:
    total = result.counts()
    console.print(
        f"{total.total():,} requests in all: " + ", ".join(f"{count:,} {name}" for name, count in total.most_common()),
        highlight=False,
    )


def _print_faults(console: Console, faults: Sequence[str]) -> int:
    for fault in faults:
        console.print(f"FAIL: {fault}", style="bold red", highlight=False)
    return 1 if faults else 0
