"""`farside manager`, `farside store` and `farside token`: what an operator runs where the manager is."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from farside.cli import options

store_app = typer.Typer(help="The manager's store.", no_args_is_help=True, rich_markup_mode=None)


class TokenRole(StrEnum):
    """What a token is for."""

    USER = "user"
    OPERATOR = "operator"
    NODE = "node"


def manager_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    app.add_typer(store_app, name="store")
    app.command()(manager)
    app.command()(token)


def manager(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Run the cluster's manager: its API and what decides.

    Runs until SIGTERM. All that it knows is in its store.
    """
    from farside.config import ManagerConfig, load_config

    loaded = load_config(ManagerConfig, config or (), options.overrides(settings))
    from farside.scheduler.live.manager import run

    raise typer.Exit(run(loaded))


def token(
    name: Annotated[str, typer.Argument(help="Of the node or user; '' for a token that any node may use.")],
    role: Annotated[TokenRole, typer.Option(help="What it may do.")] = TokenRole.NODE,
    file: Annotated[Path, typer.Option(help="The manager's tokens_file.")] = Path("/etc/farside/tokens.toml"),
) -> None:
    """Make a token, and print it.

    The file keeps only its hash; a running manager knows the token at once.
    """
    from farside.scheduler.live.api.caller import Role, add_token

    print(add_token(file, name, Role(role.value)))


@store_app.command()
def backup(
    to: Annotated[Path, typer.Argument(help="A new file.")],
    config: options.ConfigFiles = None,
    settings: options.Overrides = None,
) -> None:
    """Copy the store into one file, while the manager runs."""
    from farside.config import ManagerConfig, load_config
    from farside.scheduler.live.store.event_store import EventStore
    from farside.scheduler.live.store.migrate import backup as copy

    store = EventStore(load_config(ManagerConfig, config or (), options.overrides(settings)).store_url)
    print(f"{to}: {copy(store, to)} entries")


@store_app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="What `farside store backup` wrote.")],
    config: options.ConfigFiles = None,
    settings: options.Overrides = None,
) -> None:
    """Write a backup into a store that is empty; the manager must not run."""
    from farside.config import ManagerConfig, load_config
    from farside.scheduler.live.store.event_store import EventStore
    from farside.scheduler.live.store.migrate import restore as copy

    store = EventStore(load_config(ManagerConfig, config or (), options.overrides(settings)).store_url)
    print(f"{source}: {copy(source, store)} entries restored")


@store_app.command()
def upgrade(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Make the store, or bring that of an older Farside up to date; the manager does so itself when it starts."""
    from farside.config import ManagerConfig, load_config
    from farside.scheduler.live.store.event_store import EventStore
    from farside.scheduler.live.store.migrate import upgrade as bring

    bring(EventStore(load_config(ManagerConfig, config or (), options.overrides(settings)).store_url))
    print("the store is up to date")


@store_app.command()
def check(
    is_complete: Annotated[bool, typer.Option("--complete", help="All jobs are supposed to have ended.")] = False,
    config: options.ConfigFiles = None,
    settings: options.Overrides = None,
) -> None:
    """Read the whole log and look for GPUs given twice, jobs started twice or lost. Exit code 1 when there is one.

    What has left the log is read from the archive.
    """
    from farside.config import ManagerConfig, load_config
    from farside.scheduler.live.invariant import violations
    from farside.scheduler.live.store.compact import archive_of, whole_log
    from farside.scheduler.live.store.event_store import EventStore

    loaded = load_config(ManagerConfig, config or (), options.overrides(settings))
    entries = whole_log(EventStore(loaded.store_url), archive_of(loaded.store_url, loaded.archive_dir))
    found = list(violations(entries, is_complete=is_complete))
    for line in found:
        print(line)
    print("the log is sound" if not found else f"{len(found)} violations")
    if found:
        raise typer.Exit(1)


@store_app.command()
def compact(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Make the log smaller now; the manager does so itself now and then, and may run meanwhile.

    An image of what is known lets it start fast; entries older than keep_history_s move into the archive.
    """
    from farside.config import ManagerConfig, load_config
    from farside.scheduler.live.store.compact import archive_of
    from farside.scheduler.live.store.compact import compact as make_smaller
    from farside.scheduler.live.store.event_store import EventStore
    from farside.scheduler.live.store.migrate import upgrade as bring

    loaded = load_config(ManagerConfig, config or (), options.overrides(settings))
    store = EventStore(loaded.store_url)
    bring(store)
    archive = archive_of(loaded.store_url, loaded.archive_dir)
    done = make_smaller(store, archive, time.time(), loaded.keep_history_s)
    where = f" to {archive.folder}" if archive is not None and done.archived else ""
    print(f"image of entry {done.image_seq}; {done.forgotten} jobs forgotten; {done.archived} entries archived{where}")
