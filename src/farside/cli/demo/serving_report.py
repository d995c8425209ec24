"""The table of the demo's serving scene."""

from rich.console import Console

from farside.cli.demo.serving import ServingScene, scene_faults
from farside.cli.figure_table import figure_table


def print_scene(console: Console, scene: ServingScene) -> int:
    """Prints planned against achieved, and what was wrong; the exit code."""
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
    plans = figure_table("new plan", "devices", "sum of parts", "started", "resized", "closed", "took")
    for one in scene.status.changes:
        took_s = one.plan_s + one.prepare_s + one.drain_s
        plans.add_row(
            one.cause, f"{one.gpus}", f"{one.part_pct} %", f"{one.prepared}", f"{one.resized}", f"{one.closed}",
            one.problem or f"{took_s:.1f} s",
        )  # fmt: skip
    console.print(plans)
    total = scene.result.counts()
    console.print(
        f"{total.total():,} requests in all: " + ", ".join(f"{count:,} {name}" for name, count in total.most_common()),
        highlight=False,
    )
    faults = scene_faults(scene)
    for fault in faults:
        console.print(f"FAIL: {fault}", style="bold red", highlight=False)
    return 1 if faults else 0
