"""Commands for users of the manager: `farside submit`, `queue`, `show` and others."""

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from farside.cli import options
from farside.cli.job_file import WantedJob, job_keys, read_job
from farside.cli.terminal import note
from farside.errors import ConfigError, FarsideError, PeerError

if TYPE_CHECKING:
    from farside.client.manager_client import ManagerClient

Client: TypeAlias = "ManagerClient"
Manager = Annotated[
    str | None,
    typer.Option("--manager", metavar="ADDRESS", help="Address of the manager: unix:PATH or http(s)://HOST:PORT."),
]
State = Annotated[Path | None, typer.Option(help="Use the manager of the sandbox in this folder.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Job number, as printed by `farside submit`.")]
JobIds = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Job numbers; the number of an array selects all its jobs.")
]
# Key in the context: the number of words after `--`.
_BEHIND = "farside.behind"
# Options of `submit` that are called otherwise than the key of the job.
_KEY_OF = {
    "--time": "time_limit_s",
    "--swap": "swap_bytes_per_gpu",
    "--checkpoint": "checkpoint_dir",
    "--per-gpu": "ranks",
    "--array": "count",
}
_Swap = Annotated[
    str | None, typer.Option("--swap", metavar="SIZE", help="Swap in remote memory for each GPU, such as 8GiB.")
]
_Partition = Annotated[str | None, typer.Option("--partition", "-p", help="Partition to run in.")]
_Aggregation = Annotated[
    str | None, typer.Option("--aggregation", metavar="shared", help="Aggregate gradients at the shared Aggregators.")
]


class _Submit(TyperCommand):
    """The command `submit`, which has options of a program among its words and so must know what came after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses as usual, and counts the words after `--`."""
        # Counted here, as the parser drops the `--` and no one can see afterwards which words came behind it.
        ctx.meta[_BEHIND] = len(args) - args.index("--") - 1 if "--" in args else 0
        return super().parse_args(ctx, args)

    @property
    def epilog(self) -> str:
        """The keys of a job file; found for the help alone, as that takes a while."""
        return f"Keys of a job file: {', '.join(job_keys())}; docs/manager.md says what each means."

    @epilog.setter
    def epilog(self, _: str | None) -> None:
        """Set by the framework for each command; the keys stay."""


def client_of(manager: Manager = None, state: State = None) -> Client:
    """A connection to the manager that the options mean."""
    from farside.client.manager_client import ManagerClient, find_manager

    return ManagerClient(find_manager(manager, state))


# Gives a command whose first parameter is a client the options that say which manager it is.
with_client = options.made(is_last=True, client=client_of)


def cluster_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    # A program's own options are words of the command, so the parser lets unknown ones through; `_refuse_a_slip` finds
    # those that were meant for submit.
    app.command(cls=_Submit, context_settings={"ignore_unknown_options": True})(with_client(submit))
    for command in (queue, show, cancel, hold, release, explain, logs, nodes, drain, undrain):
        app.command()(with_client(command))


def submit(
    client: Client,
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB.toml | -- COMMAND...]", help="Job file, or command to run.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", help="Number of GPUs in total, over all nodes.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the job.")] = None,
    account: Annotated[
        str | None, typer.Option("--account", "-A", help="Account that GPU hours are charged to.")
    ] = None,
    qos: Annotated[str | None, typer.Option("--qos", help="Quality of service (QOS).")] = None,
    partition: _Partition = None,
    time_limit: Annotated[
        str | None, typer.Option("--time", "-t", metavar="TIME", help="Time limit, such as 90s or 2h.")
    ] = None,
    swap: _Swap = None,
    per_gpu: Annotated[
        bool, typer.Option("--per-gpu", help="Start one process per GPU instead of one per node.")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint folder on shared storage; makes the job preemptible.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Output file; %j is the job number, %r the rank.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(min=0, help="Restart the job up to this many times if it fails.")
    ] = None,
    aggregation: _Aggregation = None,
    after: Annotated[
        list[str] | None, typer.Option(metavar="JOB", help="Start only after this job has succeeded (repeatable).")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--array", min=1, help="Submit an array of this many equal jobs.")
    ] = None,
    held: Annotated[bool, typer.Option("--hold", help="Hold the job until `farside release`.")] = False,
    settings: options.Overrides = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the job number.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Submit a job: a job file, or a command after `--`.

    Options override the job file. The job runs in the current folder, with the current environment if the file has no
    [env].
    """
    words, behind = command or [], context.meta[_BEHIND]
    _refuse_a_slip(context, words[: len(words) - behind], words)
    said = {
        "--gpus": gpus, "--name": name, "--account": account, "--qos": qos, "--time": time_limit, "--swap": swap,
        "--checkpoint": None if checkpoint is None else str(checkpoint.absolute()), "--output": output,
        "--per-gpu": "gpu" if per_gpu else None, "--retries": retries, "--after": after or None, "--array": count,
        "--hold": True if held else None, "--aggregation": aggregation, "--partition": partition,
    }  # fmt: skip
    # All words behind `--` are a command, also one that ends in .toml.
    is_file = False if behind >= len(words) else None
    job = read_job(words, _settings(settings), os.getcwd(), os.environ, options=_keys(said), is_file=is_file)
    answer = _submit(job, client)
    _print_submitted(answer, quiet=quiet, as_json=as_json)


def _print_submitted(answer: Any, *, quiet: bool, as_json: bool) -> None:
    ids: list[str] = answer["ids"]
    if as_json:
        print(json.dumps(answer))
    elif quiet:
        print("\n".join(ids))
    else:
        print(f"job {ids[0]}" if len(ids) == 1 else f"jobs {ids[0]} to {ids[-1]}")


def _keys(said: Mapping[str, Any]) -> dict[str, tuple[str, object]]:
    """Options that were given, and their values, by the key of the job that each one sets."""
    from farside.units import parse_bytes, parse_seconds

    parse = {"--swap": parse_bytes, "--time": parse_seconds}
    given = {option: value for option, value in said.items() if value is not None}
    given |= {option: options.value_of(option, given[option], parse[option]) for option in parse.keys() & given}
    return {_KEY_OF.get(option, option.removeprefix("--")): (option, value) for option, value in given.items()}


def _submit(job: WantedJob, client: Client) -> Any:
    """Hands a job in; a refusal names keys as the person who wrote the job did."""
    try:
        return client.post("jobs", body=job.body)
    except ConfigError as error:
        # The manager knows its own keys only, not the file or the option that set them.
        raise ConfigError(job.in_own_words(str(error))) from error


def _refuse_a_slip(context: typer.Context, before: Sequence[str], words: Sequence[str]) -> None:
    """Refuses unknown options in ``before``, the words before `--`: they would be run, or be lost, as words."""
    is_file = bool(before) and before[0].endswith(".toml")
    # Without a job file only the first word can be a slip: later ones belong to the program that it names.
    slips = [word for word in (before if is_file else before[:1]) if word.startswith("-") and word != "-"]
    if slips:
        from farside.config.convert import nearest

        name = slips[0].partition("=")[0]
        meant = nearest(name, [one for option in context.command.params for one in option.opts])
        hint = f"did you mean {meant}" if meant else "`farside submit --help` lists them; a command goes after `--`"
        raise ConfigError(f"no such option {name}", hint=hint)
    if is_file and len(words) > 1:
        hint = "put a command after `--`, and what the job needs into the file"
        raise ConfigError(f"{before[0]}: more words follow the job file: {' '.join(words[1:])}", hint=hint)


def _settings(texts: Sequence[str] | None) -> Mapping[str, object]:
    """A variable's value is text, also one that is a number in TOML."""
    told = options.overrides(texts)
    as_text = {name: text for name, text in options.texts_by_name(texts).items() if name.startswith("env.")}
    return {**told, **{name: text for name, text in as_text.items() if not isinstance(told[name], str)}}


def queue(
    client: Client,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show finished ones too.")] = False,
    user: Annotated[str | None, typer.Option(help="Show only jobs of this user; for operators.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List jobs, with their nodes or the reason why they wait."""
    query = {"all": "true" if everything else None, "user": user}
    answer = client.get("jobs", **{name: value for name, value in query.items() if value is not None})
    if as_json:
        print(json.dumps(answer["jobs"], indent=2))
        return
    from farside.cli.cluster_table import job_table

    does_one_wait = any(job["state"] == "waiting" for job in answer["jobs"])
    # The overview explains the first of the waiting jobs only, as the manager has to compute each explanation; so it is
    # not asked for where no job waits.
    why = client.get("overview")["why"] if does_one_wait else {}
    print_table(job_table(answer["jobs"], why, time.time()))


def show(client: Client, job: JobId, as_json: options.AsJson = False) -> None:
    """Show one job: its processes, its request and its history."""
    found = client.get("jobs", job)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import job_lines

    for line in job_lines(found, client.get("jobs", job, "history")["entries"]):
        print(line)


def cancel(client: Client, jobs: JobIds, as_json: options.AsJson = False) -> None:
    """Cancel jobs: SIGTERM, then SIGKILL after their grace period."""
    _each(client, jobs, "cancel", as_json)


def hold(client: Client, jobs: JobIds, as_json: options.AsJson = False) -> None:
    """Hold waiting jobs, so that they do not start."""
    _each(client, jobs, "hold", as_json)


def release(client: Client, jobs: JobIds, as_json: options.AsJson = False) -> None:
    """Release held jobs."""
    _each(client, jobs, "release", as_json)


def _each(client: Client, jobs: list[str], what: str, as_json: bool) -> None:

    def tasks_of(job: str) -> list[str]:
        return [one["id"] for one in client.get("jobs")["jobs"] if one["id"].startswith(f"{job}_")]

    def word(job: Any) -> str:
        return f"job {job['id']}: {'stopping' if what == 'cancel' else job['state']}"

    act_on_each(jobs, lambda job: client.post("jobs", job, what), word, parts_of=tasks_of, as_json=as_json)


def act_on_each(
    names: Iterable[str],
    act: Callable[[str], Any],
    word: Callable[[Any], str],
    *,
    parts_of: Callable[[str], Sequence[str]] = lambda _: (),
    as_json: bool = False,
) -> None:
    """Prints each result as it comes, and goes on after one that was refused; then the exit code is 1.

    Where one that is refused has parts, these are tried instead: an array is nothing but its tasks.

    Raises:
        PeerError: The manager does not answer, and the others are not tried.
    """
    done: list[Any] = []
    is_refused = False
    left = deque(names)
    try:
        while left:
            name = left.popleft()
            try:
                done.append(act(name))
            # No answer at all: the others would have none either.
            except PeerError:
                raise
            except FarsideError as error:
                if parts := parts_of(name):
                    # In front and in their order, so that results come in the order of the command line.
                    left.extendleft(reversed(parts))
                    continue
                is_refused = True
                note(str(error))
            else:
                if not as_json:
                    print(word(done[-1]), flush=True)
    # Also when the manager stops answering: what was done before cannot be learned otherwise.
    finally:
        if as_json:
            print(json.dumps(done, indent=2))
    if is_refused:
        raise typer.Exit(1)


def explain(client: Client, job: JobId, as_json: options.AsJson = False) -> None:
    """Explain why a job waits, and what it waits for."""
    answer = client.get("jobs", job, "explain")
    print(json.dumps(answer, indent=2) if as_json else "\n".join(answer["lines"]))


def logs(
    client: Client,
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Show the output of this process (rank).")] = 0,
) -> None:
    """Print a job's output.

    Reads the output file with your own rights: the file must be on this machine or on shared storage.
    """
    from farside.cli.cluster_logs import follow_output

    follow_output(lambda: client.get("jobs", job), rank, is_following=follow)


def nodes(client: Client, as_json: options.AsJson = False) -> None:
    """List nodes with their GPUs, jobs, free memory, borrowers (--json) and the reason of a drain."""
    answer = client.get("nodes")
    if as_json:
        lent = {one["node"]: one["loans"] for one in client.get("donors")["donors"]}
        print(json.dumps([{**node, "loans": lent.get(node["name"], [])} for node in answer["nodes"]], indent=2))
        return
    from farside.cli.cluster_table import node_table

    print_table(node_table(answer["nodes"]))


def drain(
    client: Client,
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="Node names.")],
    reason: Annotated[str, typer.Option(help="Reason, shown to users.")] = "",
) -> None:
    """Drain nodes: start no new jobs there; running jobs continue."""
    act_on_each(names, lambda name: client.post("nodes", name, "drain", body={"reason": reason}), _node_word)


def undrain(
    client: Client,
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="Node names.")],
) -> None:
    """Undrain nodes, so that jobs start there again."""
    act_on_each(names, lambda name: client.post("nodes", name, "undrain"), _node_word)


def _node_word(node: Any) -> str:
    return f"{node['name']}: {node['state']}"


def print_table(table: Any) -> None:
    """Prints it, cut to the terminal where there is one."""
    from rich.console import Console

    # In a pipe rich would assume 80 columns and cut what programs are to read.
    Console(soft_wrap=not os.isatty(1)).print(table)
