"""Commands on the manager's machine: `farside manager`, `farside store` and `farside token`."""

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from farside.cli import options
from farside.cli.imports import without_garbage_collection

if TYPE_CHECKING:
    from farside.config import ManagerConfig

State = Annotated[Path | None, typer.Option(help="Use the store of the sandbox in this folder.")]

store_app = typer.Typer(
    help="Back up, restore, check and compact the manager's store.", no_args_is_help=True, rich_markup_mode=None
)


def manager_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    app.add_typer(store_app, name="store")
    app.command()(manager)
    app.command()(token)
    app.add_typer(tokens_app, name="tokens")


def manager(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Run the manager of the cluster: the API and the scheduler process.

    Runs until SIGTERM. All its state is in its store.
    """
    from farside.config import ManagerConfig, load_config

    loaded = load_config(ManagerConfig, config or (), options.overrides(settings))
    with without_garbage_collection():
        from farside.scheduler.manager.main import run

    raise typer.Exit(run(loaded))


TOKENS_FILE = Path("/etc/farside/tokens.toml")
TokensFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the manager's tokens (tokens_file); default: that of the sandbox which FARSIDE_STATE names, "
        f"otherwise {TOKENS_FILE}."
    ),
]


def _tokens_file(told: Path | None) -> Path:
    """The file of ``--file``, otherwise that of FARSIDE_STATE's sandbox, otherwise the one in /etc/farside.

    Raises:
        ConfigError: FARSIDE_STATE names a folder in which no cluster runs.
    """
    from farside.client.state_folder import sandbox_config, state_told
    from farside.config import ManagerConfig, load_config

    folder = state_told()
    if told is not None or folder is None:
        return told or TOKENS_FILE
    return load_config(ManagerConfig, [sandbox_config(folder)]).tokens_file


def token(
    name: Annotated[str, typer.Argument(help="Name of the node or user.")],
    role: Annotated[Literal["user", "operator", "node"], typer.Option(help="Role of the token's owner.")] = "node",
    file: TokensFile = None,
    valid: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long the token counts, such as 30d; default: until revoked.")
    ] = None,
) -> None:
    """Make a token and print it.

    The file keeps only the hash of the token. A running manager accepts the token at once. Nodes may join by
    `farside node invite` instead, which needs no secret to be kept.
    """
    from farside.scheduler.manager.auth.token_file import Role, add_token
    from farside.units import parse_seconds

    valid_s = math.inf if valid is None else options.value_of("--valid", valid, parse_seconds)
    print(add_token(_tokens_file(file), name, Role(role), expires_s=time.time() + valid_s))


tokens_app = typer.Typer(help="List and revoke the tokens of the manager.", no_args_is_help=True, rich_markup_mode=None)


@tokens_app.command("list")
def list_tokens(file: TokensFile = None, as_json: options.AsJson = False) -> None:
    """List the tokens by owner; a token itself is nowhere kept."""
    from farside.cli.cluster import print_table
    from farside.cli.cluster_table import token_table
    from farside.scheduler.manager.auth.token_file import read_tokens

    rows = read_tokens(_tokens_file(file))
    if as_json:
        shown = [
            {"name": row.name, "role": row.role, "id": row.id, "expires_s": _finite(row.expires_s)} for row in rows
        ]
        print(json.dumps(shown, indent=2))
        return
    print_table(token_table(rows, time.time()))


def _finite(at_s: float) -> float | None:
    return at_s if math.isfinite(at_s) else None


@tokens_app.command()
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME|ID...", help="Owners, or ids of single tokens.")],
    file: TokensFile = None,
) -> None:
    """Revoke tokens: requests by them are refused at once, and sessions of agents end within a second."""
    from farside.scheduler.manager.auth.token_file import revoke_tokens

    for row in revoke_tokens(_tokens_file(file), frozenset(names)):
        print(f"{row.name}: {row.role} token {row.id} revoked")


def _settings(
    config: options.ConfigFiles = None, settings: options.Overrides = None, state: State = None
) -> "ManagerConfig":
    """Settings of the manager that the options name: files, a sandbox, FARSIDE_STATE's sandbox, /etc/farside."""
    from farside.client.state_folder import sandbox_config, state_told
    from farside.config import ManagerConfig, load_config
    from farside.errors import ConfigError

    if config and state is not None:
        raise ConfigError("--config and --state both say which manager is meant", hint="keep one of them")
    folder = None if config else state_told(state)
    files = config or ([sandbox_config(folder)] if folder is not None else [])
    return load_config(ManagerConfig, files, options.overrides(settings))


# Gives a command of the store the options that say which manager's store is meant.
with_settings = options.made(is_last=True, loaded=_settings)


@store_app.command()
@with_settings
def backup(
    loaded: "ManagerConfig",
    to: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
) -> None:
    """Copy the store into one file, while the manager runs."""
    from farside.scheduler.manager.store.event_store import EventStore
    from farside.scheduler.manager.store.migrate import backup as copy

    store = EventStore(loaded.store_url)
    print(f"{to}: {copy(store, to)} entries")


@store_app.command()
@with_settings
def restore(
    loaded: "ManagerConfig",
    source: Annotated[Path, typer.Argument(metavar="FILE", help="File written by `farside store backup`.")],
) -> None:
    """Restore a backup into an empty store; the manager must not run."""
    from farside.scheduler.manager.store.event_store import EventStore
    from farside.scheduler.manager.store.migrate import restore as copy

    store = EventStore(loaded.store_url)
    print(f"{source}: {copy(source, store)} entries restored")


@store_app.command()
@with_settings
def upgrade(loaded: "ManagerConfig") -> None:
    """Create the store, or upgrade that of an older Farside; the manager does this when it starts."""
    from farside.scheduler.manager.store.event_store import EventStore
    from farside.scheduler.manager.store.migrate import upgrade as bring

    bring(EventStore(loaded.store_url))
    print("the store is up to date")


@store_app.command()
@with_settings
def check(
    loaded: "ManagerConfig",
    is_complete: Annotated[
        bool, typer.Option("--complete", help="Report jobs that have not ended as errors too.")
    ] = False,
) -> None:
    """Check the whole log for GPUs allocated twice, and jobs started twice or lost. Exit code 1 if there are any.

    Entries that have left the log are read from the archive.
    """
    from farside.scheduler.manager.model.check_log import violations
    from farside.scheduler.manager.store.compact import archive_of, whole_log
    from farside.scheduler.manager.store.event_store import EventStore

    entries = whole_log(EventStore(loaded.store_url), archive_of(loaded.store_url, loaded.archive_dir))
    found = list(violations(entries, is_complete=is_complete))
    for line in found:
        print(line)
    print("the log is sound" if not found else f"{len(found)} violations")
    if found:
        raise typer.Exit(1)


@store_app.command()
@with_settings
def compact(loaded: "ManagerConfig") -> None:
    """Compact the log now; the manager does this regularly, and may run meanwhile.

    Writes a snapshot, so that the manager starts fast; entries older than keep_history_s move to the archive.
    """
    from farside.scheduler.manager.store.compact import archive_of
    from farside.scheduler.manager.store.compact import compact as make_smaller
    from farside.scheduler.manager.store.event_store import EventStore
    from farside.scheduler.manager.store.migrate import upgrade as bring

    store = EventStore(loaded.store_url)
    bring(store)
    archive = archive_of(loaded.store_url, loaded.archive_dir)
    done = make_smaller(store, archive, time.time(), loaded.keep_history_s)
    where = f" to {archive.folder}" if archive is not None and done.archived else ""
    print(
        f"snapshot of entry {done.snapshot_seq}; {done.forgotten} jobs forgotten; "
        f"{done.archived} entries archived{where}"
    )
