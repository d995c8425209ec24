"""`farside submit`, `queue`, `show` and the others that talk to the manager."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farside.cli import options

if TYPE_CHECKING:
    from farside.manager_client import ManagerClient

Manager = Annotated[
    str | None, typer.Option("--manager", metavar="ADDRESS", help="unix:PATH or http(s)://HOST:PORT of the manager.")
]
State = Annotated[Path | None, typer.Option(help="Folder of a sandbox whose manager is meant.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Its number, as `farside submit` printed it.")]
JobIds = Annotated[list[str], typer.Argument(metavar="JOB...", help="Their numbers.")]


def cluster_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command(context_settings={"ignore_unknown_options": True})(submit)
    for command in (queue, show, cancel, hold, release, explain, logs, nodes, drain, undrain):
        app.command()(command)


def client_of(manager: str | None, state: Path | None) -> "ManagerClient":
    """A connection to the manager that the options mean."""
    from farside.manager_client import ManagerClient, find_manager

    return ManagerClient(find_manager(manager, state))


def submit(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB.toml | -- COMMAND...]", help="A job file, or what to run.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", help="GPUs over all nodes.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="What listings call it.")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="Whom its GPU hours are charged to.")] = None,
    qos: Annotated[str | None, typer.Option("--qos", help="Its quality of service.")] = None,
    time_limit: Annotated[str | None, typer.Option("--time", "-t", metavar="TIME", help="Such as 90s, 2h.")] = None,
    swap: Annotated[
        str | None, typer.Option("--swap", metavar="SIZE", help="Farside swap for each GPU, such as 8GiB.")
    ] = None,
    per_gpu: Annotated[bool, typer.Option("--per-gpu", help="One process for each GPU, not for each node.")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder that all nodes share; a job that has one may be preempted.")
    ] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Output file; %j the job, %r the rank.")] = None,
    retries: Annotated[int | None, typer.Option(min=0, help="Starts again so often when it fails.")] = None,
    after: Annotated[list[str] | None, typer.Option(metavar="JOB", help="Only when this one is done.")] = None,
    count: Annotated[int, typer.Option("--array", min=1, help="So many jobs alike.")] = 1,
    held: Annotated[bool, typer.Option("--hold", help="Does not start until it is released.")] = False,
    settings: options.Overrides = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the id alone.")] = False,
    as_json: options.AsJson = False,
    manager: Manager = None,
    state: State = None,
) -> None:
    """Submit a job: a job file, or a command behind `--`.

    Options go before what the job file says. It runs in this folder, with this environment if the file has no [env].
    """
    from farside.job_file import job_body
    from farside.units import parse_bytes, parse_seconds

    told: dict[str, object] = {
        "gpus": gpus, "name": name, "account": account, "qos": qos,
        "checkpoint_dir": None if checkpoint is None else str(checkpoint.absolute()),
        "output": output, "retries": retries, "after": after or None, "ranks": "gpu" if per_gpu else None,
        "swap_bytes_per_gpu": None if swap is None else options.value_of("--swap", swap, parse_bytes),
        "time_limit_s": None if time_limit is None else options.value_of("--time", time_limit, parse_seconds),
    }  # fmt: skip
    body = job_body(command or (), {**options.overrides(settings), **_given(told)}, os.getcwd(), os.environ)
    answer = client_of(manager, state).post("jobs", body={**body, "count": count, "hold": held})
    ids: list[str] = answer["ids"]
    if as_json:
        print(json.dumps(answer))
    elif quiet:
        print("\n".join(ids))
    else:
        print(f"job {ids[0]}" if len(ids) == 1 else f"jobs {ids[0]} to {ids[-1]}")


def _given(told: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in told.items() if value is not None}


def queue(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that are over.")] = False,
    user: Annotated[str | None, typer.Option(help="Of this user alone, for operators.")] = None,
    as_json: options.AsJson = False,
    manager: Manager = None,
    state: State = None,
) -> None:
    """List jobs: what runs where, what waits and why."""
    query = _given({"all": "true" if everything else None, "user": user})
    answer = client_of(manager, state).get("jobs", **{name: str(value) for name, value in query.items()})
    if as_json:
        print(json.dumps(answer["jobs"], indent=2))
        return
    from farside.cli.cluster_table import job_table

    print_table(job_table(answer["jobs"], time.time()))


def show(job: JobId, as_json: options.AsJson = False, manager: Manager = None, state: State = None) -> None:
    """Show one job: its processes, what it asked for, all that happened to it."""
    client = client_of(manager, state)
    found = client.get("jobs", job)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import job_lines

    for line in job_lines(found, client.get("jobs", job, "history")["entries"]):
        print(line)


def cancel(jobs: JobIds, as_json: options.AsJson = False, manager: Manager = None, state: State = None) -> None:
    """End jobs: SIGTERM, their grace period, SIGKILL."""
    _each(jobs, "cancel", as_json, manager, state)


def hold(jobs: JobIds, as_json: options.AsJson = False, manager: Manager = None, state: State = None) -> None:
    """Keep waiting jobs from starting."""
    _each(jobs, "hold", as_json, manager, state)


def release(jobs: JobIds, as_json: options.AsJson = False, manager: Manager = None, state: State = None) -> None:
    """Let held jobs start."""
    _each(jobs, "release", as_json, manager, state)


def _each(jobs: list[str], what: str, as_json: bool, manager: str | None, state: Path | None) -> None:
    client = client_of(manager, state)
    answers = [client.post("jobs", job, what) for job in jobs]
    if as_json:
        print(json.dumps(answers, indent=2))
    else:
        for answer in answers:
            print(f"job {answer['id']}: {answer['state']}")


def explain(job: JobId, as_json: options.AsJson = False, manager: Manager = None, state: State = None) -> None:
    """Say why a job waits, and what it waits for."""
    answer = client_of(manager, state).get("jobs", job, "explain")
    print(json.dumps(answer, indent=2) if as_json else "\n".join(answer["lines"]))


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Of this process of it.")] = 0,
    manager: Manager = None,
    state: State = None,
) -> None:
    """Print a job's output.

    Reads the file that the job writes, with your own rights: it must be on this machine or on storage shared with it.
    """
    from farside.cli.cluster_logs import follow_output

    client = client_of(manager, state)
    follow_output(lambda: client.get("jobs", job), rank, is_following=follow)


def nodes(as_json: options.AsJson = False, manager: Manager = None, state: State = None) -> None:
    """List nodes: GPUs, who has them, memory headroom, who borrows it (--json), what drains and why."""
    client = client_of(manager, state)
    answer = client.get("nodes")
    if as_json:
        lent = {one["node"]: one["loans"] for one in client.get("donors")["donors"]}
        print(json.dumps([{**node, "loans": lent.get(node["name"], [])} for node in answer["nodes"]], indent=2))
        return
    from farside.cli.cluster_table import node_table

    print_table(node_table(answer["nodes"]))


def drain(
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="Their names.")],
    reason: Annotated[str, typer.Option(help="For those who wonder.")] = "",
    manager: Manager = None,
    state: State = None,
) -> None:
    """Start nothing new on nodes; what runs there runs on."""
    client = client_of(manager, state)
    for name in names:
        print(f"{name}: {client.post('nodes', name, 'drain', body={'reason': reason})['state']}")


def undrain(
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="Their names.")],
    manager: Manager = None,
    state: State = None,
) -> None:
    """Let jobs start on nodes again."""
    client = client_of(manager, state)
    for name in names:
        print(f"{name}: {client.post('nodes', name, 'undrain')['state']}")


def print_table(table: Any) -> None:
    """Prints it, cut to the terminal where there is one."""
    from rich.console import Console

    Console(soft_wrap=not os.isatty(1)).print(table)
