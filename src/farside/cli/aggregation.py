"""The command `farside aggregation`: which jobs share which Aggregators, and what they lose by it."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from farside.cli import options
from farside.cli.cluster import Client, print_table, with_client
from farside.errors import ConfigError


def aggregation_commands(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("aggregation")(with_client(show_aggregation))


def show_aggregation(
    client: Client,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Job number; without one, all.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show Aggregators and the jobs that share them: where each is, what it loses, what it waits for."""
    told = client.get("aggregation")
    if job is not None:
        rows = [row for row in told["jobs"] if row["job"] == job]
        if not rows:
            raise ConfigError(
                f"job {job} does not aggregate", hint='a job with aggregation = "shared" that is not over does'
            )
        told = {"aggregators": [one for one in told["aggregators"] if job in one["jobs"]], "jobs": rows}
    if as_json:
        print(json.dumps(told, indent=2))
        return
    from farside.cli.cluster_table import aggregated_job_table, aggregator_table

    print_table(aggregator_table(told["aggregators"]))
    print_table(aggregated_job_table(told["jobs"]))
    for row in told["jobs"] if job is not None else ():
        print(_cost_line(row))


def _cost_line(row: Mapping[str, Any]) -> str:
    """What aggregation of one job costs, in a line."""
    if row.get("byte_s") is None:
        return "what aggregation costs: not known yet"
    parts = [f"{1e6 * row['chunk_s']:.3g} us a chunk"] if row["chunk_s"] else []
    parts += [f"{1e9 * row['byte_s']:.3g} ns a byte that a member pushes"] if row["byte_s"] else []
    note = f" ({row['cost_note']})" if row["cost_note"] else ""
    return f"processor time of aggregation: {' and '.join(parts)}{note}"
