"""The command `farside config`: check settings files, and show the settings that count."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farside.cli import options
from farside.cli.terminal import note

if TYPE_CHECKING:
    from farside.config import Effective

config_app = typer.Typer(help="Check and show settings.", no_args_is_help=True, rich_markup_mode=None)


class Program(StrEnum):
    """Program to show the settings of."""

    DAEMON = "daemon"
    BLOCKDEV = "blockdev"
    AGENT = "agent"
    MANAGER = "manager"
    SLURM = "slurm"


Whose = Annotated[
    Program | None, typer.Option("--for", help="Program of the settings, if the file name does not show it.")
]


@config_app.command()
def check(
    files: Annotated[list[Path] | None, typer.Argument(help="Settings files; default: those in /etc/farside.")] = None,
    program: Whose = None,
) -> None:
    """Check settings, and print each problem in one line. Exit code 2 if there are any.

    A program without settings in /etc/farside is checked only if --for names it.
    """
    from farside.config.load import ETC, ConfigProblems, standard_files

    problems: list[str] = []
    for whose, paths in groups(files or (), program):
        read = paths or standard_files(whose)
        try:
            # A program that is not set up here is not checked: its defaults would complain of a missing disk.
            if read or program:
                loaded = effective(whose, paths)
                for warning in loaded.warnings:
                    note(f"warning: {warning}")
                _hold_to_machine(loaded)
                _hold_to_start(loaded)
        except ConfigProblems as error:
            problems += error.problems
        else:
            told = f"{', '.join(map(str, read))}: ok" if read else f"{ETC / f'{whose}.toml'}: not there, defaults"
            print(f"{whose}: {told}")
    for problem in problems:
        note(problem)
    if problems:
        raise typer.Exit(2)


@config_app.command()
def show(
    program: Annotated[Program, typer.Argument(help="Program to show the settings of.")],
    config: options.ConfigFiles = None,
    as_json: options.AsJson = False,
) -> None:
    """Show every setting: its value, the source of the value, its default, range and meaning."""
    rows = _rows(effective(program, config or ()))
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}} = {row['shown'] or '(empty)'}   [{row['source']}]")
        told = "; ".join(filter(None, (row["doc"], row["allowed"], f"default {row['default'] or '(empty)'}")))
        print(f"{'':{width}}   # {told}")


def _hold_to_machine(loaded: "Effective[Any]") -> None:
    """Raises ConfigProblems for a disk that the program would refuse; one that is not there is made at its start."""
    from farside.config import BlockdevConfig
    from farside.config.load import ConfigProblems

    config = loaded.config
    if not isinstance(config, BlockdevConfig) or config.protection != "disk":
        return
    path, source = config.disk_path, loaded.sources["disk_path"]
    if os.path.exists(path) and not (path.is_file() or path.is_block_device()):
        raise ConfigProblems([f"{source}: disk_path: {path} is neither a file nor a block device; name one of these"])


def _hold_to_start(loaded: "Effective[Any]") -> None:
    """Raises ConfigProblems for what manager or engine over Slurm would refuse at its start of policies and files."""
    from farside.config.load import ConfigProblems
    from farside.errors import FarsideError

    problems = []
    for about, check in _start_checks(loaded.config).items():
        try:
            check(loaded.config)
        except FarsideError as error:
            problems.append(f"{_source_of(loaded, about, str(error))}: {error}")
    if problems:
        raise ConfigProblems(problems)


def _start_checks(config: object) -> Mapping[str, Callable[[Any], object]]:
    from farside.config import ManagerConfig, SlurmConfig

    try:
        if isinstance(config, ManagerConfig):
            from farside.scheduler.manager.named_files import READERS

            return READERS
        if isinstance(config, SlurmConfig):
            from farside.scheduler.slurm.check_settings import CHECKS

            return CHECKS
    except ModuleNotFoundError:  # a machine without numpy: neither program runs there
        pass
    return {}


# By what a check is about, the setting whose source is named where its message begins with none.
_SETTINGS = {"policy": "policy", "rights": "order_by", "power": "power", "tls": "tls_cert"}


def _source_of(loaded: "Effective[Any]", about: str, text: str) -> str:
    """Where the setting that a message begins with was given."""
    found = re.match(r"\w+", text)
    return loaded.sources[found[0] if found and found[0] in loaded.sources else _SETTINGS[about]]


def groups(files: Sequence[Path], program: Program | None) -> list[tuple[Program, list[Path]]]:
    """Files with whose settings they are, by their name unless said; without files, every program's standard ones."""
    if not files:
        return [(whose, []) for whose in ([program] if program else Program)]
    return [(program or _whose(file), [file]) for file in files]


def _whose(file: Path) -> Program:
    from farside.errors import ConfigError

    for whose in Program:
        # daemon.toml, and drop-ins as daemon.d/10-site.toml
        if file.name.startswith(whose) or file.parent.name.startswith(whose):
            return whose
    raise ConfigError(
        f"{file}: the name does not say which program it is for", hint=f"give --for {' or --for '.join(Program)}"
    )


def effective(whose: Program, paths: Sequence[Path]) -> "Effective[Any]":
    """The settings of a program that count, with their sources."""
    from farside.config.load import effective_config, kinds

    return effective_config(kinds()[whose], paths)


def _rows(loaded: "Effective[Any]") -> list[dict[str, Any]]:
    from farside.config.convert import allowed, shown
    from farside.config.settings import settings_of

    values = ((setting, getattr(loaded.config, setting.name)) for setting in settings_of(type(loaded.config)).values())
    return [
        {
            "name": setting.name,
            "value": value if isinstance(value, bool | int | float) else shown(setting, value),
            "shown": shown(setting, value),
            "unit": str(setting.kind),
            "default": shown(setting, setting.default),
            "allowed": allowed(setting),
            "source": loaded.sources[setting.name],
            "doc": setting.doc,
        }
        for setting, value in values
    ]
