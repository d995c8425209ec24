"""The command `farside sim`: simulates a job log under other schedulers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from farside.cli import options
from farside.cli.sim_trace import trace_app
from farside.errors import ConfigError

sim_app = typer.Typer(
    help="Run traces of jobs under the scheduler's policies.", no_args_is_help=True, rich_markup_mode=None
)
sim_app.add_typer(trace_app, name="trace")


POLICIES = "fifo, best-effort, yarn-cs, sf, sjf, srtf, srsf, timeshare, las, gittins, qssf"
PLACEMENTS = "consolidate, skew, fragments, count, random, yarn, ilp"
_Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file.")]
_Report = Annotated[
    Path | None, typer.Option(metavar="FILE.html", help="Write a page with tables and plots to this file.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of `farside sim run`, `compare` and `why`, as they were given."""

    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace file, plain or gzip, or builtin:NAME.")]
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help=f"Policy that orders jobs: {POLICIES}.")]
    gpus_per_node: Annotated[int, typer.Option(metavar="G", min=1, help="GPUs of each node.")]
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the policy or of the rules (repeatable)."),
    ] = None
    placement: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"Placement that chooses nodes: {PLACEMENTS}; default: that of the policy."),
    ] = ""
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of nodes of the cluster, or of the one virtual cluster."),
    ] = None
    cpus_per_node: Annotated[
        float | None,
        typer.Option(metavar="C", min=0, help="CPUs of each node, for jobs that request CPUs; default: unlimited."),
    ] = None
    memory_per_node: Annotated[
        int | None,
        typer.Option(
            parser=options.byte_count,
            metavar="BYTES",
            help="Memory of each node, such as 512GiB, for jobs that request memory; default: unlimited.",
        ),
    ] = None
    nodes_per_rack: Annotated[
        int | None,
        typer.Option(
            metavar="R",
            min=1,
            help="Nodes under one switch; yarn keeps a job within it, consolidate if it can; default: all nodes.",
        ),
    ] = None
    gpu_model: Annotated[
        str,
        typer.Option(
            parser=str.strip,
            metavar="NAME",
            help="Model of all GPUs, for jobs that request one; 'any' matches every request.",
        ),
    ] = ""
    vc: Annotated[
        list[str] | None,
        typer.Option("--vc", metavar="NAME", help="Run only jobs of this virtual cluster (repeatable)."),
    ] = None
    vc_nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV with the number of nodes of each virtual cluster, per day if it has a day column.",
        ),
    ] = None
    from_time: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Run only jobs submitted at this time or later.")
    ] = ""
    to_time: Annotated[
        str, typer.Option("--to", metavar="TIME", help="Run only jobs submitted at this time or earlier.")
    ] = ""
    on_bad: Annotated[
        Literal["refuse", "skip"],
        typer.Option("--on-bad", help="What to do with unusable rows and with jobs that never fit."),
    ] = "refuse"
    fmt: Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the trace; auto: detect it.")] = "auto"
    attempts: Annotated[
        Literal["whole", "each"],
        typer.Option(help="Count a job that was started several times as one job (whole) or as several (each)."),
    ] = "whole"
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Past jobs, for policies that learn: a trace for qssf, GPU seconds for gittins."
        ),
    ] = None
    train_to: Annotated[
        str,
        typer.Option(
            "--train-to", metavar="TIME", help="Learn from jobs that ended by this time, and run only later jobs."
        ),
    ] = ""
    tenants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", help="Apply accounts and QOS of this manager.toml, and the fair share between them."
        ),
    ] = None
    maintenance: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Close nodes for maintenance: nodes,begin,end and planned,reason."),
    ] = None
    models: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Start with the model that `farside predict fit` wrote to this folder."),
    ] = None

    @property
    def vcs(self) -> tuple[str, ...]:
        """The virtual clusters that ``vc`` names, each once."""
        return tuple(dict.fromkeys(name for text in self.vc or () for name in _names(text)))

    @property
    def settings_by_name(self) -> Mapping[str, str]:
        """Text by name. Unlike `options.overrides` it leaves the text as it is: what a field takes, its type says.

        Raises:
            ConfigError: One has no equals sign.
        """
        return options.texts_by_name(self.settings, form="KEY=VALUE", example="limits_gpu_s=3600")


class SpreadCommand(TyperCommand):
    """Lets ``--vc a b`` stand for ``--vc a --vc b`` once all arguments have been given; the same of ``--set``.

    ``--bad``, the name that ``--on-bad`` had here once, still does.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Spreads, then parses."""
        return super().parse_args(ctx, list(self._spread(args)))

    def _spread(self, args: Sequence[str]) -> Iterator[str]:
        # ``is_value``: the next word is the value of the option before it. ``last``: the repeatable option that a
        # further word without a dash belongs to. ``missing``: arguments that have not come yet; until then such a word
        # is one of them.
        options = {name: one for one in self.params if isinstance(one, TyperOption) for name in one.opts}
        missing = sum(isinstance(one, TyperArgument) for one in self.params)
        last, is_value = "", False
        for text in args:
            if is_value:
                is_value = False
            elif text.partition("=")[0] == "--bad":
                text = f"--on-bad{text.removeprefix('--bad')}"
                last, is_value = "", "=" not in text
            elif text.startswith("-"):
                option = options.get(text)
                last = text if option is not None and option.multiple else ""
                is_value = option is not None and not option.is_flag
            elif last and not missing:
                yield last
            else:
                missing -= 1
            yield text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _policies(text: str) -> tuple[str, ...]:
    names = _names(text)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"--policy names {twice} twice", hint="compare each policy once; a run has one set of settings"
        )
    return names


def _refuse_several(request: Request, command: str) -> None:
    names = _names(request.policy)
    if len(names) > 1:
        hint = f"farside sim compare --policy {','.join(names)} takes several"
        raise ConfigError(f"{command} takes one policy, not {len(names)}", hint=hint)


@sim_app.command(cls=SpreadCommand)
@options.made(request=Request)
def run(
    request: Request,
    jobs_out: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write one row per job to this file; .csv or .parquet.")
    ] = None,
    json_out: _Json = None,
    report: _Report = None,
) -> None:
    """Run a trace under one policy.

    Prints the main figures; files have all figures and the result of each job.
    """
    from farside.cli.simulate.main import Outputs
    from farside.cli.simulate.main import run as simulate

    _refuse_several(request, "run")
    simulate(request, Outputs(jobs=jobs_out, json=json_out, report=report))


@sim_app.command(cls=SpreadCommand)
@options.made(request=Request)
def compare(
    request: Request,
    policy: Annotated[
        str, typer.Option("--policy", metavar="A,B,C", help=f"Policies, separated by commas: {POLICIES}.")
    ],
    json_out: _Json = None,
    report: _Report = None,
) -> None:
    """Run a trace under several policies, and compare them.

    Prints one row per policy; a star marks the best of each column. --set KEY=VALUE applies to every policy that has
    this parameter, --set las.KEY=VALUE only to las.
    """
    from farside.cli.simulate.main import Outputs
    from farside.cli.simulate.main import compare as simulate

    simulate(request, _policies(policy), Outputs(json=json_out, report=report))


@sim_app.command(cls=SpreadCommand)
@options.made(request=Request)
def why(request: Request, job: Annotated[str, typer.Argument(metavar="JOB", help="Job id in the trace.")]) -> None:
    """Show the decisions that made a job of a trace wait.

    The two arguments may be in either order.
    """
    from farside.cli.simulate.main import why as simulate

    _refuse_several(request, "why")
    if not request.trace.exists() and Path(job).is_file():
        request, job = replace(request, trace=Path(job)), str(request.trace)
    raise typer.Exit(simulate(request, job))


@sim_app.command()
def replay(
    state: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Use the manager of the running sandbox in this folder.")
    ] = None,
    config: options.ConfigFiles = None,
    settings: options.Overrides = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write the jobs to this file, as a trace for `farside sim run`."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate the jobs of a manager, and compare the result with what really happened.

    Reads the log in the manager's store; its settings name store, policy and placement. If the manager has changed
    its policy since, choose one with --set policy=NAME.
    """
    from farside.cli.simulate.replay import run as simulate
    from farside.client.state_folder import sandbox_config

    files = [*(config or ()), *([sandbox_config(state)] if state is not None else [])]
    simulate(files, options.overrides(settings), trace=trace, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationRequest:
    """The options of `farside sim aggregation`, as they were given; None: not given."""

    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="JSON of mixes of jobs that arrive and leave (docs/aggregation.md), or a job log."
        ),
    ]
    variant: Annotated[
        Literal["printed", "corrected", "cycles"],
        typer.Option(
            help="Rule: printed, Pseudocode 3 to the letter; corrected; cycles, corrected with cycles of 4 iterations."
        ),
    ] = "cycles"
    capacity: Annotated[
        float | None, typer.Option(metavar="CORES", help="Cores of each server that aggregates, for mixes; default: 1.")
    ] = None
    loss_limit: Annotated[float, typer.Option(metavar="SHARE", help="Share of its speed that no job may lose.")] = 0.1
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Seed of what is drawn for a job log; default: 1."),
    ] = None
    period_s: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Period to whose end empty servers are kept, for a job log; default: 300.",
        ),
    ] = None
    cluster_max: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Servers of one cluster, for a job log; default: 50.")
    ] = None
    on_demand_min: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Let a job that lacks fewer servers wait for the end of the period, for a job log; default: 1.",
        ),
    ] = None
    servers_max: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Servers of the pool, for a job log; default: no limit.")
    ] = None


@sim_app.command()
@options.made(request=AggregationRequest)
def aggregation(
    request: AggregationRequest,
    json_out: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the state after each event or minute to this file."),
    ] = None,
) -> None:
    """Place jobs' tensors on shared servers, and count the servers.

    Shows whether a server has more work than it can do, what jobs lose by sharing, and of a job log how much time of
    servers is saved.
    """
    from farside.cli.simulate.aggregation import run as simulate

    simulate(request, json_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationRequest:
    """The options of `farside sim colocation`, as they were given."""

    table: Annotated[
        Path | None,
        typer.Argument(metavar="TABLE", help="CSV table of jobs (docs/colocation.md); default: 80 drawn jobs."),
    ] = None
    machines: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Machines of the cluster.")] = 100
    policy: Annotated[
        str,
        typer.Option(metavar="A,B,C", help="Policies, the first of which the others are compared with."),
    ] = "isolated,best-isolated,naive,harmony,harmony-shortest"
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="Seeds of the draws, such as 1-10 or 1,4.")] = "1"
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter (repeatable).")
    ] = None

    @property
    def settings_by_name(self) -> Mapping[str, str]:
        """Text by name.

        Raises:
            ConfigError: One has no equals sign.
        """
        return options.texts_by_name(self.settings, form="KEY=VALUE", example="isolated_machines=8")


@sim_app.command()
@options.made(request=ColocationRequest)
def colocation(
    request: ColocationRequest,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all groups and jobs to this file.")
    ] = None,
) -> None:
    """Run jobs that share machines, taking turns at computing and communicating.

    Compares them with jobs that have machines of their own, and with jobs that share without turns.
    """
    from farside.cli.simulate.colocation import run as simulate

    simulate(request, json_out)
