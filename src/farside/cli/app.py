"""The commands of `farside`, and what becomes of an error.

Help must come at once (0.2 s of CPU), so a command imports what does its work inside its own body.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from farside.cli import options
from farside.cli.cluster import cluster_commands
from farside.cli.cluster_admin import admin_commands
from farside.cli.config import Whose, config_app
from farside.cli.daemon import daemon_app
from farside.cli.energy import energy_app
from farside.cli.manager import manager_commands
from farside.cli.power import power_commands
from farside.cli.predict import predict_app
from farside.cli.sim import sim_app
from farside.cli.sizing import sizing
from farside.cli.slurm import slurm_app
from farside.cli.swap import swap_app
from farside.cli.top import top
from farside.cli.trace import trace_app
from farside.cli.unit import unit_app
from farside.demo.part import ScenePart
from farside.errors import FarsideError
from farside.terminal import flush_output, printable
from farside.units import MIB

DEBUG = "FARSIDE_DEBUG"

app = typer.Typer(
    name="farside",
    help="Idle memory of other machines as swap space: lend it, borrow it, watch it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(daemon_app, name="daemon")
app.add_typer(config_app, name="config")
app.add_typer(sim_app, name="sim")
app.add_typer(swap_app, name="swap")
app.add_typer(trace_app, name="trace")
app.add_typer(energy_app, name="energy")
app.add_typer(predict_app, name="predict")
app.add_typer(slurm_app, name="slurm")
manager_commands(app)
cluster_commands(app)
app.command()(top)
admin_commands(app)
power_commands(app)
app.command()(sizing)
app.add_typer(unit_app, name="unit", hidden=True)


def main() -> None:
    """Runs the command line: exit code 0, 1 for a failure, 2 for wrong arguments or settings."""
    try:
        _run()
    except FarsideError as error:
        if os.environ.get(DEBUG):
            raise
        _end(error)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if os.environ.get(DEBUG):
            raise
        _end(_of_system(error))
    except ExceptionGroup as group:
        # Tasks of one scope fail together; the first to fail says why.
        ours, others = group.split(FarsideError)
        if ours is None or others is not None or os.environ.get(DEBUG):
            raise
        _end(_first(ours))
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        app()
    finally:
        flush_output()  # Python would find out after us, with lines of its own and exit code 120


def _of_system(error: OSError) -> FarsideError:
    # Of a file that could not be had, where nobody said more about it; or of printing without a buffer.
    where = f"{error.filename}: " if error.filename else ""
    is_full = error.errno == errno.ENOSPC and not where
    hint = "standard output is not whole" if is_full else "`farside --debug ...` shows where"
    return FarsideError(f"{where}{error.strerror or error}", hint=hint)


def _end(error: FarsideError) -> NoReturn:
    for line in str(error).splitlines():
        print(f"farside: {printable(line)}", file=sys.stderr)
    sys.exit(error.exit_code)


def _first(group: ExceptionGroup[FarsideError]) -> FarsideError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"farside {version('farside')}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"  # in the environment, so that child processes show theirs too


@app.command()
def blockdev(
    config: options.ConfigFiles = None,
    settings: options.Overrides = None,
    stdio: Annotated[
        bool, typer.Option("-s", "--stdio", help="Serve one client on standard input and output, then end.")
    ] = False,
    fd_store: Annotated[
        bool, typer.Option("--fd-store", help="As a systemd service that keeps descriptors: go on after a restart.")
    ] = False,
) -> None:
    """Serve a block device from donors' memory.

    Speaks NBD; runs until SIGTERM.
    """
    from farside.config import BlockdevConfig, load_config

    told = options.overrides(settings)
    if fd_store:
        from farside.blockdev.main import run_as_service

        raise typer.Exit(run_as_service(lambda: load_config(BlockdevConfig, config or (), told)))
    loaded = load_config(BlockdevConfig, config or (), told)
    from farside.blockdev.main import run

    raise typer.Exit(run(loaded, stdio=stdio))


@app.command()
def agent(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Run the manager's jobs on this machine.

    Reports what this node has and does; runs until SIGTERM. Jobs run on without it.
    """
    from farside.config import AgentConfig, load_config

    loaded = load_config(AgentConfig, config or (), options.overrides(settings))
    from farside.agent.main import run

    raise typer.Exit(run(loaded))


@app.command()
def sandbox(
    donors: Annotated[int, typer.Option(min=1, help="How many donors.")] = 3,
    donor_memory: Annotated[
        int, typer.Option(parser=options.byte_count, metavar="BYTES", help="Memory of each donor.")
    ] = 512 * MIB,
    transport: Annotated[str, typer.Option(help="tcp, shm or rdma.")] = "tcp",
    size: Annotated[int, typer.Option(parser=options.byte_count, metavar="BYTES", help="Size of the device.")] = 1024
    * MIB,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ENDPOINT", help="unix:PATH or tcp:HOST:PORT for clients; may be repeated."),
    ] = None,
    disk: Annotated[
        Path | None, typer.Option(help="Backup file, written over; without it one in the state folder.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=2, help="2: a second donor instead of the disk.")] = 1,
    no_protection: Annotated[
        bool, typer.Option("--no-protection", help="Neither disk nor replica: a lost donor loses pages.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="Folder for sockets, logs, configs, new or empty; else a temporary one.")
    ] = None,
    slab: Annotated[
        int | None, typer.Option(parser=options.byte_count, metavar="BYTES", help="Size of a slab.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=16, help="NBD connections at once.")] = None,
    restart_donors: Annotated[bool, typer.Option("--restart-donors", help="Start a donor again when it ends.")] = False,
    cluster: Annotated[
        str | None, typer.Option(metavar="NODESxGPUS", help="A manager and agents with declared GPUs too, such as 4x8.")
    ] = None,
) -> None:
    """Run a whole memory plane, and with --cluster a cluster plane, on this machine.

    Real, separate processes, until SIGTERM or Ctrl-C. Prints `ready URI` when clients may connect.
    """
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
            state=state,
            slab_bytes=slab,
            restart_donors=restart_donors,
            cluster=cluster,
            **given,
        )
    )


@app.command()
def status(
    state: Annotated[Path | None, typer.Option(help="Folder of a sandbox.")] = None,
    socket: Annotated[Path | None, typer.Option(help="Admin socket of one process.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what is mapped where, and how busy it is.

    Asks this machine's daemon and blockdev, unless a sandbox or a socket is named.
    """
    from farside.status.main import run

    raise typer.Exit(run(state=state, socket=socket, json_output=as_json))


@app.command()
def admin(
    command: Annotated[str, typer.Argument(help="status, replace, fault, ...")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...")] = None,
    socket: Annotated[Path, typer.Option(help="Admin socket of the process.")] = Path("/run/farside/blockdev.sock"),
    limit: Annotated[
        float | None, typer.Option(help="Seconds to wait for the answer; 10, and 150 where a process is started.")
    ] = None,
) -> None:
    """Give a running process one command.

    Prints its answer as JSON: `farside admin replace`, `farside admin fault donor=d1 kind=delay every=1 delay_s=0.1`.
    """
    import json

    from farside.admin import call, limit_of

    told: dict[str, Any] = {name: value for name, value in options.overrides(arguments).items() if name != "timeout_s"}
    print(json.dumps(call(socket, command, timeout_s=limit or limit_of(command), **told), indent=2))


@app.command()
def demo(
    state: Annotated[
        Path | None, typer.Option(help="Folder of its sandbox, for `farside status --state`; else a temporary one.")
    ] = None,
    scene: Annotated[ScenePart, typer.Option(help="What to play.")] = ScenePart.ALL,
) -> None:
    """Show all of it on this machine, in two minutes.

    Donors are squeezed and killed, the borrower is replaced, real clients verify every byte; then the same jobs run
    under FIFO and under LAS, really and in the simulator. Exit code 1 unless all of that happened and every byte was
    right.
    """
    from farside.demo.main import run

    raise typer.Exit(run(state=state, part=scene))


@app.command()
def doctor(
    config: options.ConfigFiles = None,
    program: Whose = None,
    as_json: options.AsJson = False,
) -> None:
    """Check what this machine has and lacks.

    Each line says what was found and what to do; exit code 1 when something that is needed is missing.
    """
    from farside.cli.doctor import run

    raise typer.Exit(run(config or (), program, as_json=as_json))


@app.command()
def keygen(
    path: Annotated[Path, typer.Argument(help="The key file.")] = Path("/etc/farside/key"),
    add: Annotated[
        bool, typer.Option("--add", help="Put a new key before the old one, which stays valid: the start of a change.")
    ] = False,
    retire: Annotated[
        bool, typer.Option("--retire", help="Take the older of two keys out: the end of a change.")
    ] = False,
) -> None:
    """Make or change the cluster's key.

    All nodes share it: copy the file to each of them.
    """
    from farside import keygen as doing
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
