"""Loading of files and drop-ins into one frozen config.

How it works: the main file is read first, then its drop-ins in the order of their names, then what the command line
says; the last word on a setting wins, and where it came from is remembered. Drop-ins of `NAME.toml` are `NAME.d/*.toml`
beside it, as systemd does it, so that a package, a site and a machine each have a file of their own.
"""

import os
import re
import socket
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from farside.config.agent import AgentConfig
from farside.config.aggregator import AggregatorConfig
from farside.config.blockdev import BlockdevConfig
from farside.config.check import (
    Problem,
    agent_problems,
    aggregator_problems,
    blockdev_problems,
    daemon_problems,
    manager_problems,
    slurm_problems,
)
from farside.config.convert import convert, nearest, unknown
from farside.config.daemon import DaemonConfig
from farside.config.manager import ManagerConfig
from farside.config.renamed import Names, current_names, rename_warnings
from farside.config.settings import settings_of
from farside.config.slurm import SlurmConfig
from farside.errors import ConfigError
from farside.log import get_log, start_logging

ETC = Path("/etc/farside")
COMMAND_LINE = "command line"
DEFAULT = "default"
_FILE_BYTES_MAX = 1 << 20
_WORD = re.compile(r"\w+")
_log = get_log("config")

ConfigT = TypeVar("ConfigT", DaemonConfig, BlockdevConfig, AgentConfig, ManagerConfig, SlurmConfig, AggregatorConfig)

# The program, whose files are named after it, and what its settings must fulfil together.
_PROGRAMS: Mapping[type[Any], tuple[str, Callable[[Any], Iterator[Problem]]]] = {
    DaemonConfig: ("daemon", daemon_problems),
    BlockdevConfig: ("blockdev", blockdev_problems),
    AgentConfig: ("agent", agent_problems),
    ManagerConfig: ("manager", manager_problems),
    SlurmConfig: ("slurm", slurm_problems),
    AggregatorConfig: ("aggregator", aggregator_problems),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective(Generic[ConfigT]):
    """A config and the source of each setting: a file, 'default' or 'command line'.

    Attributes:
        warnings: One line for each setting that a file has under an old name.
    """

    config: ConfigT
    sources: Mapping[str, str]
    warnings: tuple[str, ...] = ()


class ConfigProblems(ConfigError):
    """Everything that is wrong with the settings; each of ``problems`` is one line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def kinds() -> Mapping[str, type[Any]]:
    """The settings' class of each program: `daemon`, `blockdev`, `agent`, `manager`, `slurm` and `aggregator`."""
    return {program: kind for kind, (program, _problems_of) in _PROGRAMS.items()}


def standard_files(program: str) -> tuple[Path, ...]:
    """/etc/farside/PROGRAM.toml and its drop-ins, as far as they are there."""
    standard = ETC / f"{program}.toml"
    return ((standard,) if standard.exists() else ()) + _drop_ins(standard)


def load_config(
    kind: type[ConfigT], paths: Sequence[Path] = (), overrides: Mapping[str, object] | None = None
) -> ConfigT:
    """A program's settings from these files (default: those of /etc/farside) with their drop-ins.

    Old names of settings are logged, one warning each.

    Raises:
        ConfigProblems: Something is wrong; one line each.
    """
    loaded = effective_config(kind, paths, overrides)
    if loaded.warnings:
        start_logging(loaded.config.log_level)  # the program itself starts it later, with these settings
    for warning in loaded.warnings:
        _log.warning(warning)
    return loaded.config


def effective_config(
    kind: type[ConfigT], paths: Sequence[Path] = (), overrides: Mapping[str, object] | None = None
) -> Effective[ConfigT]:
    """The settings of `load_config` with the source of each value; logs nothing."""
    program, problems_of = _PROGRAMS[kind]
    files: tuple[Path, ...] = _files(paths, program)
    known = settings_of(kind)
    values: dict[str, Any] = {}
    sources = dict.fromkeys(known, DEFAULT)
    problems: list[str] = []
    wrong: set[str] = set()  # settings whose value is not known
    warnings: list[str] = []
    names = Names(known)
    found: list[tuple[str, Mapping[str, object]]] = [(str(file), _read(file)) for file in files]
    found.append((COMMAND_LINE, overrides or {}))
    for source, told in found:
        for word, value in told.items():
            try:
                name = names.current(word, source)
                if name not in known:
                    raise ValueError(unknown(name, known))
                values[name] = convert(known[name], value)
                sources[name] = source
                warnings += (f"{source}: {word}: {text}" for text in rename_warnings(known[name], word, value))
            except ValueError as error:
                problems.append(f"{source}: {word}: {error}")
                name = current_names(known).get(word, word)
                wrong.add(name if name in known else nearest(name, known))
    config = kind(**values)
    config = config if config.node else replace(config, node=socket.gethostname())
    # A default is at fault only because no file says otherwise: name the file that should.
    silent = {DEFAULT: str(next(iter(files), ETC / f"{program}.toml"))}
    problems += [
        f"{silent.get(sources[name], sources[name])}: {name}: {text}"
        for name, text in problems_of(config)
        if not wrong.intersection(_WORD.findall(f"{name} {text}"))  # that one was held to a default
    ]
    if problems:
        raise ConfigProblems(problems)
    return Effective(config=config, sources=sources, warnings=tuple(warnings))


def _files(paths: Sequence[Path], program: str) -> tuple[Path, ...]:
    return tuple(file for path in paths for file in (path, *_drop_ins(path))) or standard_files(program)


def _drop_ins(path: Path) -> tuple[Path, ...]:
    folder = path.with_suffix(".d")
    try:
        return tuple(sorted(folder.glob("*.toml"))) if folder.is_dir() else ()
    except OSError as error:
        raise ConfigProblems([f"{folder}: {error.strerror}; name a file in a folder that can be read"]) from error


def _read(file: Path) -> dict[str, object]:
    try:
        # Without O_NONBLOCK a fifo would hang us before we could see that it is one.
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
            if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
                raise ConfigProblems([f"{file}: is a fifo; name a regular file"])
            data = stream.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigProblems([f"{file}: is larger than 1 MiB; this is no settings file"])
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigProblems([f"{file}: {error.strerror}; name a file that can be read"]) from error
    except UnicodeDecodeError as error:
        raise ConfigProblems([f"{file}: is not UTF-8 text; save it as UTF-8"]) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigProblems([f"{file}: {error}; fix the TOML there"]) from error
