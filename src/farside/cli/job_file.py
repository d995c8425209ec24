"""Job files of `farside submit`: TOML with the keys of the API's job.

    command = ["python", "train.py"]     # or argv
    gpus = 4
    time_limit = "2h"                    # or time_limit_s
    memory_per_gpu = "16GiB"             # or memory_bytes_per_gpu
    swap = "8GiB"                        # or swap_bytes_per_gpu: Farside swap beyond that, for each GPU likewise
    checkpoint_dir = "/shared/ann/run1"

    colocate = true                      # instead of gpus: it takes turns with others on a node without GPUs
    threads = 2
    memory = "2GiB"                      # or memory_bytes
    workers = "1-4"                      # nodes, fewest and most; or one number

    [[role]]                             # instead of command and gpus: processes that are not alike
    name = "worker"
    command = ["python", "worker.py"]
    count = 4                            # gpus = 1, cpus, memory = "8GiB", swap = "4GiB" of each
    [[role]]
    name = "ps"
    command = ["python", "server.py"]
    gpus = 0
    service = true                       # stopped when the others have ended

Where a file does not say, a job runs in the folder and with the environment of its user. A file, ``--set`` and
options are each brought into the manager's keys before one goes before the other; what the manager refuses is told in
the words that the user wrote.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from functools import cache
from pathlib import Path

from farside.errors import ConfigError
from farside.units import parse_bytes, parse_seconds

# A larger file was named by mistake; it is not read into memory.
_FILE_BYTES_MAX = 1 << 20
_VARIABLE = "env."
USUAL_UMASK = 0o022


# What people write, what the manager reads, and how; None: as it is.
_Spoken = Mapping[str, tuple[str, Callable[[str], object] | None]]
_SPOKEN: _Spoken = {
    "command": ("argv", None),
    "time_limit": ("time_limit_s", parse_seconds),
    "grace": ("grace_s", parse_seconds),
    "memory_per_gpu": ("memory_bytes_per_gpu", parse_bytes),
    "swap": ("swap_bytes_per_gpu", parse_bytes),
    "memory": ("memory_bytes", parse_bytes),
    "workers": ("workers", str),
    "role": ("roles", None),
}
_SPOKEN_OF_A_ROLE: _Spoken = {
    "command": ("argv", None),
    "memory": ("memory_bytes", parse_bytes),
    "swap": ("swap_bytes", parse_bytes),
}


@cache
def job_keys() -> Mapping[str, str]:
    """The keys of a job file, as people write them, and what the manager calls each."""
    from farside.scheduler.manager.model.spec import JobBody  # late: nobody needs it who wrote all keys right

    return _keys(_SPOKEN, JobBody.__struct_fields__)


@cache
def role_keys() -> Mapping[str, str]:
    """The keys of a role, as people write them, and what the manager calls each."""
    from farside.scheduler.manager.model.role import RoleBody

    # The log says is_service, people and the manager's users service.
    return _keys(_SPOKEN_OF_A_ROLE, [key for key in RoleBody.__struct_fields__ if key != "is_service"])


def _keys(spoken: _Spoken, all_keys: Iterable[str]) -> Mapping[str, str]:
    found = {written: key for written, (key, _) in spoken.items()}
    return found | {key: key for key in all_keys if key not in found.values()}


# `gpus: ...`, `role ps: count: ...`, `cpus_per_gpu, memory_bytes_per_gpu: ...`, where the manager begins to say
# something of a key; and what it says of one that it does not know.
_SAID = re.compile(r"(?:^|(?<=; ))(role \S+: )?([a-z]\w*(?:\.[^:;, ]+)*(?:, [a-z]\w*)*): (no such key)?")
# Prefixes of variables that belong to one login and not to a job, or from which a job would conclude that it runs in a
# terminal.
_NOT_PASSED_ON = ("DISPLAY", "SSH_", "XDG_", "DBUS_", "TERM", "LS_COLORS", "FARSIDE_", "_", "SHLVL", "OLDPWD", "PWD")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedJob:
    """What a user wants to be run.

    Attributes:
        body: The body of its submission.
        source: The job file; empty: the command line alone.
        names: By the manager's keys, as the user wrote each, and where.
    """

    body: Mapping[str, object]
    source: str
    names: Mapping[str, str]

    def in_own_words(self, refusal: str) -> str:
        """What the manager says against it, with the keys and the file as its user wrote them."""
        return _SAID.sub(self._reworded, refusal)

    def _reworded(self, said: re.Match[str]) -> str:
        role, keys, is_unknown = said[1], said[2].split(", "), bool(said[3])
        if role:
            source = f"{self.source}: " if self.source else ""
            return f"{source}{role}{', '.join(_written(key, role_keys()) for key in keys)}: "
        keys = [job_keys().get(key, key) for key in keys]
        told = [key for key in keys if key.partition(".")[0] in self.names]
        if not told and not all(key in job_keys().values() for key in keys):
            return said[0]
        text = ", ".join(self._name(key) for key in told) or ", ".join(_written(key, job_keys()) for key in keys)
        text = text.replace(f", {self.source}: ", ", ")
        return f"{text}: {_unknown(keys[0]) if is_unknown else ''}"

    def _name(self, key: str) -> str:
        """A key as it was written: of ``gpus``, or of a part such as ``env.PATH`` or ``roles.0.argv``."""
        first, *parts = key.split(".")
        roles = self.body.get("roles")
        if first != "roles" or len(parts) < 2 or not isinstance(roles, list):
            return ".".join([self.names[first], *parts])
        at, inside, *_ = parts
        return f"{self.names[first]} {roles[int(at)].get('name', at)}: {_written(inside, role_keys())}"


def _written(key: str, keys: Mapping[str, str]) -> str:
    """As people write a key of the manager's."""
    return next((written for written, one in keys.items() if one == key), key)


def _unknown(key: str) -> str:
    from farside.config.convert import nearest  # late: nobody needs it who wrote all keys right

    keys = role_keys() if key.startswith("roles.") else job_keys()
    meant = nearest(key.rpartition(".")[2], keys)
    return "no such key; " + (f"did you mean '{meant}'?" if meant else f"the keys are {', '.join(sorted(keys))}")


def read_job(
    command: Sequence[str],
    settings: Mapping[str, object],
    cwd: str,
    environment: Mapping[str, str],
    *,
    options: Mapping[str, tuple[str, object]] | None = None,
    is_file: bool | None = None,
    umask: int | None = None,
) -> WantedJob:
    """What a command line and its job file ask for.

    Args:
        command: A job file, or program and arguments.
        settings: Keys that go before the file's, as ``--set`` told them; ``env.NAME`` is a variable more.
        cwd: Folder of who submits.
        environment: Their environment.
        options: By the manager's keys, what goes before those: the option's name and its value.
        is_file: Whether ``command`` is a job file; unless told, if it is one word that ends in ``.toml``.
        umask: That of who submits; None: this process's.

    Raises:
        ConfigError: The file can't be read, or nothing says what to run.
    """
    names: dict[str, str] = {}
    body: dict[str, object] = {}
    source = ""
    if is_file or (is_file is None and len(command) == 1 and command[0].endswith(".toml")):
        source = command[0]
        body, names = _normal(f"{source}: ", _read(Path(source)))
    elif command:
        body["argv"] = list(command)
    variables = {key: value for key, value in settings.items() if key.startswith(_VARIABLE)}
    told, told_names = _normal("--set ", {key: value for key, value in settings.items() if key not in variables})
    body |= told | {key: value for key, (_, value) in (options or {}).items()}
    names |= told_names | {key: option for key, (option, _) in (options or {}).items()}
    if "argv" not in body and "roles" not in body:
        where = source or "command line"
        raise ConfigError(f"{where}: nothing to run", hint="name a job file, or a command after `--`")
    body.setdefault("cwd", cwd)
    umask = _own_umask() if umask is None else umask
    if umask != USUAL_UMASK:  # a manager of before knows no other, and refuses the key
        body.setdefault("umask", umask)
    env = body.setdefault("env", passed_on(environment, without=_threads_names() if body.get("colocate") else ()))
    if variables and isinstance(env, Mapping):
        body["env"] = {**env, **{key.removeprefix(_VARIABLE): value for key, value in variables.items()}}
        names.setdefault("env", "--set env")
    return WantedJob(body=body, source=source, names=names)


def _own_umask() -> int:
    """Umask of this process, which the kernel gives only for another one."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _normal(where: str, told: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """In the manager's keys, and how each was written there."""
    _refuse_moments(where, told)
    body: dict[str, object] = {}
    names: dict[str, str] = {}
    for written, value in told.items():
        key, parse = _SPOKEN.get(written, (written, None))
        if key in names:
            raise ConfigError(f"{where}{written}: is the same as {names[key]}", hint="keep one of them")
        body[key] = _roles(where, value) if key == "roles" else _parsed(where, written, value, parse)
        names[key] = f"{where}{written}"
    _refuse_text(where, body)
    return body, names


def _roles(where: str, roles: object) -> list[dict[str, object]]:
    if not isinstance(roles, list) or not all(isinstance(role, dict) for role in roles):
        raise ConfigError(f"{where}role: is not a table", hint="write [[role]] before the keys of each")
    found: list[dict[str, object]] = []
    for told in roles:
        named = f"{where}role {told.get('name', '')}: "
        role: dict[str, object] = {}
        for written, value in told.items():
            key, parse = _SPOKEN_OF_A_ROLE.get(written, (written, None))
            role[key] = _parsed(named, written, value, parse)
        _refuse_text(named, role)
        found.append(role)
    return found


def _refuse_text(where: str, body: Mapping[str, object]) -> None:
    if isinstance(body.get("argv"), str):
        raise ConfigError(f"{where}command: must be a list of words", hint='such as ["python", "train.py"]')


def passed_on(environment: Mapping[str, str], *, without: Sequence[str] = ()) -> dict[str, str]:
    """What of an environment a job gets: without what belongs to a terminal, and names that no shell would take.

    ``without``: names that the job may not have.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.isascii() and name.isidentifier() and not name.startswith(_NOT_PASSED_ON) and name not in without
    }


def _parsed(where: str, key: str, value: object, parse: Callable[[str], object] | None) -> object:
    try:
        return parse(str(value)) if parse is not None else value
    except ValueError as error:
        raise ConfigError(f"{where}{key}: {error}") from error


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as stream:
            # One byte more than allowed shows that there is more, also of a pipe, which has no size.
            data = stream.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigError(f"{path}: is larger than 1 MiB", hint="this is not a job file")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a file that can be read") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", hint="fix the TOML there") from error
    except RecursionError:
        raise ConfigError(f"{path}: has brackets within brackets without end", hint="fix the TOML there") from None


def _refuse_moments(where: str, value: object, key: str = "") -> None:
    """TOML has dates and times, JSON and the manager have none."""
    if isinstance(value, date | time):  # a datetime is a date
        raise ConfigError(f"{where}{key}: {value} is a date or time", hint=f'write it in quotes: "{value}"')
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, Mapping):
        parts = ((f"{key}.{name}" if key else str(name), part) for name, part in value.items())
    elif isinstance(value, list):
        parts = ((key, part) for part in value)
    for name, part in parts:
        _refuse_moments(where, part, name)


def _threads_names() -> tuple[str, ...]:
    """Variables that name numbers of threads; whoever asks for help loads no messages of agents."""
    from farside.agent.messages import THREADS

    return THREADS
