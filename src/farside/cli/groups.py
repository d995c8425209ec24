"""The command `farside groups`: which jobs take turns on a node, what bounds them, predicted and measured times."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from farside.cli import options
from farside.cli.cluster import Client, print_table, with_client
from farside.errors import ConfigError


def group_commands(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("groups")(with_client(show_groups))


def show_groups(
    client: Client,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Job number; without one, all.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the jobs that take turns on a node: what bounds their iteration, predicted and measured."""
    told = client.get("groups")
    if job is not None:
        told["groups"] = [group for group in told["groups"] if _has(group, job)]
        if not told["groups"]:
            raise ConfigError(f"job {job} takes no turns", hint="it has to run on a node with an executor, and train")
    if as_json:
        print(json.dumps(told, indent=2))
        return
    from farside.cli.cluster_table import group_job_table, group_table, plan_table, spill_table

    print_table(group_table(told["groups"]))
    print_table(group_job_table(told["groups"]))
    spilling = spill_table(told["groups"])
    if spilling.row_count:
        print_table(spilling)
    if any(group["plan"] for group in told["groups"]):
        print_table(plan_table(told["groups"]))
    if told["waiting"] and job is None:
        print(f"left out, as they would keep no more machines busy: {' '.join(told['waiting'])}")
    if told["reason"] and job is None:
        print(f"last grouping: {told['reason']}")


def _has(group: Mapping[str, Any], job: str) -> bool:
    return any(row["job"] == job for row in group["jobs"]) or job in (group["plan"] or {"jobs": ()})["jobs"]
