"""The commands of `farside`, and how an error ends one.

Help must come at once (0.2 s of CPU), so a command imports what does its work inside its own body.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from farside.cli import options
from farside.cli.aggregation import aggregation_commands
from farside.cli.cluster import cluster_commands
from farside.cli.cluster_admin import admin_commands
from farside.cli.config import Whose, config_app
from farside.cli.daemon import daemon_app
from farside.cli.energy import energy_app
from farside.cli.executor import executor
from farside.cli.groups import group_commands
from farside.cli.imports import without_garbage_collection
from farside.cli.manager import manager_commands
from farside.cli.node import node_commands
from farside.cli.power import power_app
from farside.cli.predict import predict_app
from farside.cli.serve import serve_app
from farside.cli.sim import sim_app
from farside.cli.sizing import sizing
from farside.cli.slurm import slurm_app
from farside.cli.swap import swap_app
from farside.cli.terminal import note, standard_output
from farside.cli.top import top
from farside.cli.trace import trace_app
from farside.cli.train import train_app
from farside.cli.unit import unit_app
from farside.errors import FarsideError, first_of
from farside.units import MIB

# An environment variable. Where it is set, an error ends a command with its traceback instead of one line.
DEBUG = "FARSIDE_DEBUG"
# Packages that not every installation has.
IN_SOME_COMMANDS = {
    "scipy", "matplotlib", "pyarrow", "lightgbm", "pandas", "statsmodels", "sushy",
    "torch", "onnx", "onnxruntime", "numba", "sklearn", "lda", "tritonclient",
}  # fmt: skip

app = typer.Typer(
    name="farside",
    help="Idle memory and GPUs of a cluster: lend and borrow memory as swap space, run jobs on GPUs.",
    no_args_is_help=True,
    # The package has a completion script of its own (manual.py), which starts no Python.
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(daemon_app, name="daemon")
app.add_typer(config_app, name="config")
app.add_typer(sim_app, name="sim")
app.add_typer(serve_app, name="serve")
app.add_typer(swap_app, name="swap")
app.add_typer(trace_app, name="trace")
app.add_typer(train_app, name="train")
app.add_typer(energy_app, name="energy")
app.add_typer(predict_app, name="predict")
app.add_typer(slurm_app, name="slurm")
manager_commands(app)
cluster_commands(app)
app.command()(top)
app.command()(executor)
admin_commands(app)
node_commands(app)
aggregation_commands(app)
group_commands(app)
app.add_typer(power_app, name="power")
app.command()(sizing)
# Hidden, as only systemd units call it.
app.add_typer(unit_app, name="unit", hidden=True)


def main() -> None:
    """Runs the command line: exit code 0, 1 for a failure, 2 for wrong arguments or settings."""
    try:
        _run()
    # Before OSError, of which it is a subclass. The reader, such as `head`, has all that it wants: no message.
    except BrokenPipeError:
        sys.exit(1)
    # 128 and the number of SIGINT, as a shell reports a program that Ctrl-C ended.
    except KeyboardInterrupt:
        sys.exit(130)
    except (FarsideError, OSError, ModuleNotFoundError, ExceptionGroup) as error:
        ours = _ours(error)
        if ours is None or os.environ.get(DEBUG):
            raise
        note(str(ours))
        sys.exit(ours.exit_code)


def _run() -> None:
    try:
        app()
    finally:
        # Flush here, also after an error: at its own exit Python would report what cannot be written with lines of
        # its own and exit code 120.
        with standard_output():
            pass


def _ours(error: FarsideError | OSError | ModuleNotFoundError | ExceptionGroup[Any]) -> FarsideError | None:
    """What an error says to users; None: it is a fault of the program."""
    if isinstance(error, ExceptionGroup):
        # Tasks of one scope fail together; the first to fail says why.
        ours, others = error.split(FarsideError)
        # With one error in it that is not ours, the group is a fault of the program and is raised with its traceback.
        return first_of(ours) if ours is not None and others is None else None
    if isinstance(error, ModuleNotFoundError):
        return _of_packages(error)
    return _of_system(error) if isinstance(error, OSError) else error


def _of_packages(error: ModuleNotFoundError) -> FarsideError | None:
    """A package that only some commands need is not here; None: one of ours is not, which is a fault."""
    name = (error.name or "").partition(".")[0]
    if name not in IN_SOME_COMMANDS:
        return None
    hint = "run it from a checkout, by `make venv`: the Debian package leaves out what only simulation and reports need"
    return FarsideError(f"this command needs the Python package {name}, which is not installed here", hint=hint)


def _of_system(error: OSError) -> FarsideError:
    # A file could not be opened, and the code that wanted it said no more about it; or a print without a buffer
    # failed, and then the error names no file.
    where = f"{error.filename}: " if error.filename else ""
    # Without a file name it was a print: what a reader of the output must know is that some of it is missing.
    is_full = error.errno == errno.ENOSPC and not where
    hint = "the output is incomplete" if is_full else "`farside --debug ...` shows where"
    return FarsideError(f"{where}{error.strerror or error}", hint=hint)


def _print_version(wanted: bool) -> None:
    if wanted:
        from farside.installed import version_of

        print(f"farside {version_of('farside')}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"  # in the environment, so that child processes show theirs too


@app.command()
def blockdev(
    config: options.ConfigFiles = None,
    settings: options.Overrides = None,
    stdio: Annotated[
        bool, typer.Option("-s", "--stdio", help="Serve one client on standard input and output, then exit.")
    ] = False,
    fd_store: Annotated[
        bool, typer.Option("--fd-store", help="Resume after a restart with the file descriptors that systemd kept.")
    ] = False,
) -> None:
    """Serve a block device that keeps its pages in the memory of donors.

    Speaks NBD. Runs until SIGTERM.
    """
    from farside.config import BlockdevConfig, load_config

    told = options.overrides(settings)
    # run_as_service reads the settings itself: a device that goes on keeps those that it was started with, also where
    # their files have become unusable since.
    if fd_store:
        with without_garbage_collection():
            from farside.blockdev.main import run_as_service

        raise typer.Exit(run_as_service(lambda: load_config(BlockdevConfig, config or (), told)))
    loaded = load_config(BlockdevConfig, config or (), told)
    with without_garbage_collection():
        from farside.blockdev.main import run

    raise typer.Exit(run(loaded, stdio=stdio))


@app.command()
def agent(
    config: options.ConfigFiles = None,
    settings: options.Overrides = None,
    end_rest: Annotated[
        bool,
        typer.Option("--end-rest", help="Only put back CPU and GPU settings that a killed agent has left turned down."),
    ] = False,
) -> None:
    """Run the manager's jobs on this machine.

    Reports the state of this node to the manager. Runs until SIGTERM; jobs continue without it.
    """
    from farside.config import AgentConfig, load_config

    loaded = load_config(AgentConfig, config or (), options.overrides(settings))
    if end_rest:
        from farside.agent.rest.end_rest import end_rest as put_back

        put_back(loaded)
        return
    with without_garbage_collection():
        from farside.agent.main import run

    raise typer.Exit(run(loaded))


@app.command()
def aggregator(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Sum gradients and step optimizers for the training jobs of a cluster.

    Serves the manager's jobs, and with key_file jobs without a manager. Runs until SIGTERM; jobs wait for the next one.
    """
    from farside.config import AggregatorConfig, load_config

    loaded = load_config(AggregatorConfig, config or (), options.overrides(settings))
    with without_garbage_collection():
        from farside.agent.aggregator.main import run

    raise typer.Exit(run(loaded))


@app.command()
def sandbox(
    donors: Annotated[int, typer.Option(min=1, help="Number of donors.")] = 3,
    donor_memory: Annotated[
        int, typer.Option(parser=options.byte_count, metavar="BYTES", help="Memory of each donor.")
    ] = 512 * MIB,
    transport: Annotated[str, typer.Option(help="Transport: tcp, shm or rdma.")] = "tcp",
    size: Annotated[int, typer.Option(parser=options.byte_count, metavar="BYTES", help="Size of the device.")] = 1024
    * MIB,
    listen: options.Listen = None,
    disk: options.SandboxDisk = None,
    replicas: Annotated[
        int, typer.Option(min=1, max=2, help="Copies at donors; 2: a second donor instead of the disk.")
    ] = 1,
    no_protection: Annotated[
        bool, typer.Option("--no-protection", help="Use neither disk nor replica: pages of a lost donor are lost.")
    ] = False,
    clear_pages: options.ClearPages = False,
    state: Annotated[
        Path | None, typer.Option(help="Folder for sockets, logs and settings, new or empty; default: a temporary one.")
    ] = None,
    slab: options.Slab = None,
    workers: Annotated[int | None, typer.Option(min=1, max=16, help="Maximum number of NBD connections.")] = None,
    restart_donors: Annotated[bool, typer.Option("--restart-donors", help="Restart a donor that ends.")] = False,
    cluster: options.Cluster = None,
    aggregators: options.Aggregators = 0,
    executors: options.Executors = 0,
    later: options.Later = 0,
    settings: options.ProgramSettings = None,
) -> None:
    """Run donors and a borrower, and with --cluster a manager and agents, on this machine.

    Starts real, separate processes. Runs until SIGTERM or Ctrl-C. Prints `ready URI` when clients may connect.
    """
    with without_garbage_collection():
        from farside.sandbox.main import run

    given: dict[str, Any] = {} if workers is None else {"workers": workers}
    raise typer.Exit(
        run(
            donors=donors,
            donor_memory_bytes=donor_memory,
            transport=transport,
            size_bytes=size,
            listen=tuple(listen or ()),
            disk=disk,
            replicas=replicas,
            no_protection=no_protection,
            clear_pages=clear_pages,
            state=state,
            slab_bytes=slab,
            restart_donors=restart_donors,
            cluster=cluster,
            aggregators=aggregators,
            executors=executors,
            later=later,
            program_settings=tuple(settings or ()),
            # An option that is not given is not passed on, so that the default is stated once, in the sandbox.
            **given,
        )
    )


@app.command()
def status(
    state: Annotated[Path | None, typer.Option(help="Ask the programs of the sandbox in this folder.")] = None,
    socket: Annotated[Path | None, typer.Option(help="Ask only the process with this admin socket.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show this machine's donor, borrowers, manager and agent: lent memory, use, health.

    Asks daemon, blockdev, agent and manager of this machine, unless a sandbox or a socket is named.
    """
    from farside.status.main import run

    raise typer.Exit(run(state=state, socket=socket, json_output=as_json))


@app.command()
def admin(
    command: Annotated[str, typer.Argument(help="Command: status, replace, fault, ...")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...")] = None,
    socket: Annotated[Path, typer.Option(help="Admin socket of the process.")] = Path("/run/farside/blockdev.sock"),
    limit: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for the answer; default: 10, or 150 if the command starts a process."),
    ] = None,
) -> None:
    """Send one command to a running process.

    Prints the answer as JSON: `farside admin replace`, `farside admin fault donor=d1 kind=delay every=1 delay_s=0.1`.
    """
    import json

    from farside.admin import BY_SOCKET, call, limit_of
    from farside.errors import ConfigError

    # Arguments of `call`; --limit sets the first.
    own = {"timeout_s": limit or limit_of(command), "absent_hint": BY_SOCKET}
    given = options.overrides(arguments)
    for name in (*own, "command"):
        if name in given:
            raise ConfigError(f"{name}={given[name]}: no command has such an argument", hint="see farside admin --help")
    told: dict[str, Any] = {**given, **own}
    print(json.dumps(call(socket, command, **told), indent=2))


@app.command()
def demo(
    state: Annotated[
        Path | None, typer.Option(help="Folder of its sandbox, for `farside status --state`; default: a temporary one.")
    ] = None,
    scene: Annotated[
        Literal["all", "memory", "cluster", "aggregation", "serving", "serving-cluster", "colocation", "live"],
        typer.Option(
            help="Part of the demo to run; all: memory and cluster. "
            "aggregation needs PyTorch, serving ONNX Runtime, colocation numba."
        ),
    ] = "all",
    log: Annotated[
        Path | None,
        typer.Option(
            help="Job log for the scene live, in a format of `farside sim`; default: Philly's if it is in the folder "
            "of FARSIDE_DATA or in ../shared/data, otherwise a generated one."
        ),
    ] = None,
) -> None:
    """Demonstrate Farside on this machine in two minutes.

    Donors lose memory and are killed, the borrower is replaced, and clients verify every byte. Then the same jobs run
    under FIFO and under LAS, as processes and in the simulator. In the scene aggregation two training jobs share an
    Aggregator, are moved and lose it, and end with the parameters that one process has. In the scene serving three
    models are measured and served within their SLOs, under a step in the load and a killed executor. In the scene
    serving-cluster the same is done on GPUs that a sandbox's manager leases, through a drain, the manager's death and
    the ends of leases. In the scene colocation four training jobs share two nodes in turns, are regrouped when one
    ends, and end with the models that they have alone. In the scene live a day of a job log runs under QSSF, with
    virtual clusters that lend each other idle nodes and jobs that sleep, beside its simulation. The exit code is 1 if
    any of this fails.
    """
    from farside.cli.demo.main import run

    raise typer.Exit(run(state=state, part=scene, log=log))


@app.command()
def doctor(
    config: options.ConfigFiles = None,
    program: Whose = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that this machine has what Farside needs.

    Each line names a finding and what to do. The exit code is 1 if something required is missing.
    """
    from farside.cli.doctor.report import run

    raise typer.Exit(run(config or (), program, as_json=as_json))


@app.command()
def keygen(
    path: Annotated[Path, typer.Argument(help="Key file.")] = Path("/etc/farside/key"),
    add: Annotated[
        bool,
        typer.Option("--add", help="Add a new key before the old one, which stays valid: first step of a key change."),
    ] = False,
    retire: Annotated[
        bool, typer.Option("--retire", help="Remove the older of two keys: last step of a key change.")
    ] = False,
) -> None:
    """Make or change the key of the cluster.

    All nodes share the key: copy the file to each of them.
    """
    from farside.cli import keygen as doing
    from farside.errors import ConfigError

    if add and retire:
        raise ConfigError("--add and --retire exclude each other", hint="every node needs both keys before one goes")
    if retire:
        doing.retire_key(path)
        print(f"{path}: the older key is out")
    elif add:
        doing.add_key(path)
        print(f"{path}: a new key stands first, the old one is still accepted; copy the file to every node")
    else:
        doing.make_key(path)
        print(f"{path}: made; copy it to every node of the cluster")
