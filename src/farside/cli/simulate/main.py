"""The commands `farside sim run`, `compare` and `why`: check, read, simulate, show, write."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farside.cli.sim import Request
from farside.cli.simulate.parallel import run_all
from farside.cli.simulate.request import Prepared, prepare
from farside.cli.simulate.show import Show, print_comparison, print_left_out, print_run, trace_facts
from farside.cli.terminal import printable, standard_output
from farside.errors import ConfigError
from farside.scheduler.settings import suggestion
from farside.scheduler.sim.experiment import Outcome, Unfinished
from farside.scheduler.sim.output_files import check_apart, check_writable, written
from farside.scheduler.sim.result.explain_wait import Watcher
from farside.scheduler.sim.result.write import check_table, write_jobs, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files to write, where they were asked for."""

    jobs: Path | None = None
    json: Path | None = None
    report: Path | None = None


def run(request: Request, outputs: Outputs) -> None:
    """`farside sim run`."""
    prepared, outcomes = _simulate(request, outputs)
    if outputs.jobs is not None:
        with written(outputs.jobs) as place:
            write_jobs(place, prepared.scene, outcomes[0])
    _write(outputs, prepared, outcomes, is_comparison=False)
    with standard_output():
        print_run(prepared, outcomes[0])
    print_left_out(prepared)


def compare(request: Request, policies: Sequence[str], outputs: Outputs) -> None:
    """`farside sim compare`."""
    prepared, outcomes = _simulate(request, outputs, policies)
    _write(outputs, prepared, outcomes, is_comparison=True)
    with standard_output():
        print_comparison(prepared, outcomes)
    print_left_out(prepared)


def why(request: Request, job_id: str) -> int:
    """`farside sim why`. Returns the exit code."""
    prepared = prepare(request)
    scene, experiment = prepared.scene, prepared.experiments[0]
    rows = {entry.job.job_id: row for row, entry in enumerate(scene.jobs)}
    if job_id not in rows:
        first, last = scene.jobs[0].job.job_id, scene.jobs[-1].job.job_id
        near = suggestion(job_id, (), "") if len(rows) > 10_000 else suggestion(job_id, rows, "")
        hint = near if near.startswith("did you") else f"the first is {first}, the last {last}"
        raise ConfigError(f"{request.trace}: no job '{job_id}' among the {len(rows)} that would run", hint=hint)
    simulation = experiment.simulation(scene.site, scene.jobs)
    watcher = Watcher(simulation, rows[job_id])
    simulation.run()
    with standard_output():
        sys.stdout.writelines(f"{printable(line)}\n" for line in watcher.lines())
    print_left_out(prepared)
    return 0 if watcher.has_ended else Unfinished.exit_code


def _simulate(
    request: Request, outputs: Outputs, policies: Sequence[str] | None = None
) -> tuple[Prepared, tuple[Outcome, ...]]:
    # Whatever can be refused is refused before the simulation, which may take long.
    check_table(outputs.jobs)
    check_apart(
        {"--jobs-out": outputs.jobs, "--json": outputs.json, "--report": outputs.report},
        {
            "the trace": request.trace,
            "--vc-nodes": request.vc_nodes,
            "--history": request.history,
            "--tenants": request.tenants,
            "--maintenance": request.maintenance,
        },
    )
    check_writable((outputs.jobs, outputs.json, outputs.report))
    prepared = prepare(request, policies)
    with Show([experiment.name for experiment in prepared.experiments]) as show:
        outcomes = run_all(
            prepared.experiments, prepared.scene, is_keeping_segments=outputs.report is not None, tell=show.tell
        )
    return prepared, outcomes


def _write(outputs: Outputs, prepared: Prepared, outcomes: tuple[Outcome, ...], *, is_comparison: bool) -> None:
    if outputs.json is not None:
        with written(outputs.json) as place:
            write_json(place, trace_facts(prepared), outcomes, is_comparison=is_comparison)
    if outputs.report is not None:
        from farside.scheduler.sim.result.report import write_report  # matplotlib takes long to load

        names = ", ".join(outcome.experiment.name for outcome in outcomes)
        title = f"Simulation: {names}"
        with written(outputs.report) as place:
            write_report(place, title=title, facts=prepared.facts, scene=prepared.scene, outcomes=outcomes)
