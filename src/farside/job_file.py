"""Job files: TOML with the keys of the API's job, read for `farside submit`.

    command = ["python", "train.py"]     # or argv
    gpus = 4
    time_limit = "2h"                    # or time_limit_s
    memory_per_gpu = "16GiB"             # or memory_bytes_per_gpu
    swap = "8GiB"                        # or swap_bytes_per_gpu: Farside swap beyond that, for each GPU likewise
    checkpoint_dir = "/shared/ann/run1"

    [[role]]                             # instead of command and gpus: processes that are not alike
    name = "worker"
    command = ["python", "worker.py"]
    count = 4                            # gpus = 1, cpus, memory = "8GiB", swap = "4GiB" of each
    [[role]]
    name = "ps"
    command = ["python", "server.py"]
    gpus = 0
    service = true                       # told to end when the others have

Where a file does not say, a job runs in the folder and with the environment of who submits it.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time
from pathlib import Path

from farside.errors import ConfigError
from farside.units import parse_bytes, parse_seconds

_FILE_BYTES_MAX = 1 << 20
# What people write, what the manager reads, and how.
_SPOKEN: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "time_limit": ("time_limit_s", parse_seconds),
    "grace": ("grace_s", parse_seconds),
    "memory_per_gpu": ("memory_bytes_per_gpu", parse_bytes),
    "swap": ("swap_bytes_per_gpu", parse_bytes),
}
# Of one login, not of a job; and what would tell a job that it runs in a terminal.
_NOT_PASSED_ON = ("DISPLAY", "SSH_", "XDG_", "DBUS_", "TERM", "LS_COLORS", "FARSIDE_", "_", "SHLVL", "OLDPWD", "PWD")


def job_body(
    command: Sequence[str], told: Mapping[str, object], cwd: str, environment: Mapping[str, str]
) -> dict[str, object]:
    """The body of a submission.

    Args:
        command: One word that ends in ``.toml``: a job file; else program and arguments.
        told: Keys that go before the file's.
        cwd: Folder of who submits.
        environment: Their environment.

    Raises:
        ConfigError: The file can't be read, or nothing says what to run.
    """
    body: dict[str, object] = {}
    if len(command) == 1 and command[0].endswith(".toml"):
        where = command[0]
        body = _read(Path(where))
    else:
        where = "command line"
        if command:
            body["argv"] = list(command)
    body = {**body, **told}
    _refuse_moments(where, body)
    if "command" in body:
        body["argv"] = body.pop("command")
    for spoken, (key, parse) in _SPOKEN.items():
        if spoken in body:
            body[key] = _parsed(where, spoken, body.pop(spoken), parse)
    if "role" in body:
        body["roles"] = _roles(where, body.pop("role"))
    if "argv" not in body and "roles" not in body:
        raise ConfigError(f"{where}: nothing to run", hint="name a job file, or a command behind `--`")
    _refuse_text(where, body)
    body.setdefault("cwd", cwd)
    body.setdefault("env", passed_on(environment))
    return body


def _roles(where: str, roles: object) -> list[dict[str, object]]:
    if not isinstance(roles, list) or not all(isinstance(role, dict) for role in roles):
        raise ConfigError(f"{where}: role: is no table", hint="write [[role]] before the keys of each")
    found: list[dict[str, object]] = []
    for told in roles:
        role: dict[str, object] = dict(told)
        named = f"{where}: role {role.get('name', '')}"
        if "command" in role:
            role["argv"] = role.pop("command")
        for spoken in ("memory", "swap"):
            if spoken in role:
                role[f"{spoken}_bytes"] = _parsed(named, spoken, role.pop(spoken), parse_bytes)
        _refuse_text(named, role)
        found.append(role)
    return found


def _refuse_text(where: str, body: Mapping[str, object]) -> None:
    if isinstance(body.get("argv"), str):
        raise ConfigError(f"{where}: command: must be a list of words", hint='such as ["python", "train.py"]')


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a job gets: without what belongs to a terminal, and names that no shell would take."""
    return {
        name: value
        for name, value in environment.items()
        if name.isascii() and name.isidentifier() and not name.startswith(_NOT_PASSED_ON)
    }


def _parsed(where: str, key: str, value: object, parse: Callable[[str], object]) -> object:
    try:
        return parse(str(value))
    except ValueError as error:
        raise ConfigError(f"{where}: {key}: {error}") from error


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigError(f"{path}: is larger than 1 MiB", hint="this is no job file")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a file that can be read") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="mend the TOML there") from error
    except RecursionError:
        raise ConfigError(f"{path}: has brackets within brackets without end", hint="mend the TOML there") from None


def _refuse_moments(where: str, value: object, key: str = "") -> None:
    """TOML has dates and times, JSON and the manager have none."""
    if isinstance(value, date | time):  # a datetime is a date
        raise ConfigError(f"{where}: {key}: {value} is a date or time", hint=f'write it in quotes: "{value}"')
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, Mapping):
        parts = ((f"{key}.{name}" if key else str(name), part) for name, part in value.items())
    elif isinstance(value, list):
        parts = ((key, part) for part in value)
    for name, part in parts:
        _refuse_moments(where, part, name)
