"""Settings of a sandbox's programs as its user gives them: PROGRAM.NAME=VALUE.

They stand in the program's own settings file, over what the sandbox would have written there. What ties the processes
together (addresses, sockets, folders) is the sandbox's, and is refused.
"""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence

from farside.config.convert import convert, unknown
from farside.config.load import kinds
from farside.config.settings import settings_of
from farside.errors import ConfigError
from farside.sandbox.settings import Value, toml_text

# By program the TOML text of each setting, by its name.
ProgramSettings = Mapping[str, Mapping[str, str]]
# By these the sandbox's processes find each other and their files; the others say which option has the value.
_TIES = frozenset(
    {
        "node", "name", "listen", "admin_socket", "state_dir", "store_url", "tokens_file", "token_file", "manager",
        "key_file", "peers_file", "daemon_socket", "blockdev_socket", "swap_device", "aggregator_socket",
        "executor_socket", "agent_socket", "proc_root", "run_as", "run_dir", "members_socket", "socket", "data_listen",
    }
)  # fmt: skip
_OPTIONS: Mapping[str, str] = {
    "size_bytes": "--size", "slab_bytes": "--slab", "transport": "--transport", "protection": "--replicas",
    "i_accept_data_loss": "--no-protection", "disk_path": "--disk", "encrypt_remote": "--clear-pages",
    "workers": "--workers", "colocation_nodes": "--executors", "declared_gpus": "--cluster",
}  # fmt: skip


def parse_settings(texts: Sequence[str], programs: Collection[str]) -> ProgramSettings:
    """Settings by program.

    Args:
        texts: PROGRAM.NAME=VALUE, each.
        programs: Those that the sandbox will have.

    Raises:
        ConfigError: One is of another form, or names no program of the sandbox, no setting of it that may be set here,
            or a value that the setting does not take.
    """
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        where, equals, value = text.partition("=")
        program, dot, name = where.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(f"--set {text}: is not PROGRAM.NAME=VALUE", hint="such as --set manager.policy=qssf")
        if program not in programs:
            there = f"this sandbox has {', '.join(sorted(programs))}"
            raise ConfigError(f"--set {text}: there is no program '{program}'", hint=_way(program, there))
        found.setdefault(program, {})[name] = _checked(program, name, value.strip())
    return found


def _way(program: str, there: str) -> str:
    ways = {"manager": "--cluster, such as 1x1", "agent": "--cluster, such as 1x1", "aggregator": "--aggregators 1"}
    return f"{there}; add {ways[program]}" if program in ways else there


def _checked(program: str, name: str, text: str) -> str:
    """Check a value, and return it as TOML; a value that can't be read as TOML is a text."""
    where, known = f"--set {program}.{name}", settings_of(kinds()[program])
    if name not in known:
        raise ConfigError(f"{where}: {unknown(name, known)}")
    if name in _TIES:
        raise ConfigError(f"{where}: the sandbox sets this itself", hint="by it the processes find each other")
    if name in _OPTIONS:
        raise ConfigError(f"{where}: the sandbox sets this itself", hint=f"use {_OPTIONS[name]}")
    try:
        read = tomllib.loads(f"value = {text}")
    # RecursionError: tomllib calls itself for each bracket within a bracket.
    except (tomllib.TOMLDecodeError, RecursionError):
        read, text = {"value": text}, json.dumps(text)
    if [*read] != ["value"]:  # after the end of its line another setting begins
        raise ConfigError(f"{where}: is more than one value", hint="give each setting by a --set of its own")
    value: object = read["value"]
    try:
        convert(known[name], value)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    return text


def config_text(settings: Mapping[str, Value], given: Mapping[str, str]) -> str:
    """A settings file of what the sandbox sets, with what its user has given over it."""
    own = {name: value for name, value in settings.items() if name not in given}
    return toml_text(own) + "".join(f"{name} = {text}\n" for name, text in given.items())
