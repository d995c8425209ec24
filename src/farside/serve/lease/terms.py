"""What serving.toml says of leases: GPUs of a manager's nodes, which a deployment takes one by one. PURE."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from farside.errors import ConfigError
from farside.scheduler.manager.model.spec import WORKER_WORDS, JobBody, spec_of, spec_problems
from farside.scheduler.nodes import models_of
from farside.serve.lease.rules import LAST_S
from farside.units import parse_bytes

# A lease that takes the place of another one gets a worker and executors before that is left for good.
REPLACE_BEFORE_S_MIN = LAST_S + 10.0
LEASE_S_MIN = 2 * REPLACE_BEFORE_S_MIN
LEASE_S_MAX = 4e9  # as a job's time limit
SPARE_MAX = 64


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of serving.toml that only a deployment on a manager's nodes has."""

    qos: str = ""
    account: str = ""
    gpu_model: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cpus: float | None = None  # as the manager does with jobs that name none
    memory: str = ""
    lease_s: float = 86_400.0
    replace_before_s: float = 600.0
    spare_gpus: int = 0
    preemptible: bool = False
    worker_command: tuple[str, ...] = ()
    key_file: str = ""
    log_dir: str = ""


# Keys of a lease's job that decide where it is, what it costs and what its worker does. Of the second line only what
# the file says counts, as the manager fills in the others.
_SAME_KEYS = ("argv", "nodes", "exclude", "features", "gpu_model", "memory_bytes_per_gpu", "preemptible")
_SAID_KEYS = ("partition", "account", "qos", "cpus_per_gpu")
_NAMES_HERE = {"argv": "worker_command", "memory_bytes_per_gpu": "memory", "output": "log_dir"}

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(LeaseTerms)}
KEYS = tuple(_DEFAULTS)


def check_terms(file: Path, terms: LeaseTerms) -> None:
    """Whether numbers and sizes make sense, and whether a manager would take the lease's job for what it is.

    Raises:
        ConfigError: One does not.
    """
    for name, low, high in (
        ("lease_s", LEASE_S_MIN, LEASE_S_MAX),
        ("replace_before_s", REPLACE_BEFORE_S_MIN, LEASE_S_MAX / 2),
        ("spare_gpus", 0, SPARE_MAX),
        ("cpus", 0.0, 4096.0),
    ):
        value = getattr(terms, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{file}: {name} = {value:g} is out of bounds", hint=f"give {low:g} to {high:g}")
    if terms.replace_before_s > terms.lease_s / 2:
        raise ConfigError(
            f"{file}: {_told(terms, 'replace_before_s')} is more than half of {_told(terms, 'lease_s')}".rstrip(","),
            hint=f"give replace_before_s up to {terms.lease_s / 2:g}, or lease_s from {2 * terms.replace_before_s:g}",
        )
    try:
        memory_bytes(terms)
    except ValueError as error:
        raise ConfigError(f"{file}: memory: {error}", hint='such as "16GiB"') from error
    job = job_of("any", Path("/"), terms, ("farside",), 100)
    problem = next(spec_problems(spec_of(msgspec.convert(job, JobBody), job)), "")
    if problem:
        key, sep, what = problem.partition(": ")
        raise ConfigError(f"{file}: {_NAMES_HERE.get(key, key)}{sep}{what}")


def _told(terms: LeaseTerms, name: str) -> str:
    """A key and its value, which may be one that the file does not have."""
    value, default = getattr(terms, name), _DEFAULTS[name]
    return f"{name} = {value:g}, its default," if value == default else f"{name} = {value:g}"


def memory_bytes(terms: LeaseTerms) -> int:
    """Memory of a lease; 0: not counted.

    Raises:
        ValueError: It is no size.
    """
    return parse_bytes(terms.memory) if terms.memory else 0


def job_of(
    name: str, folder: Path, terms: LeaseTerms, command: tuple[str, ...], capacity_pct: int, state_folder: str = ""
) -> dict[str, object]:
    """The keys of a lease's job.

    Args:
        name: The deployment's.
        folder: Of its file: nodes have it at the same path.
        terms: What the file says.
        command: This Farside, where the file names no other one.
        capacity_pct: Of a device's cores, that parts get.
        state_folder: Where logs of leases go unless the file names log_dir; empty: to ``folder``.
    """
    logs = folder / (terms.log_dir or state_folder)
    key = folder / terms.key_file
    worker = [*WORKER_WORDS, "--key-file", str(key), "--capacity", str(capacity_pct)]
    return {
        "argv": [*(terms.worker_command or command), *worker],
        "gpus": 1,
        "name": f"serve/{name}",
        "deployment": name,
        "account": terms.account,
        "qos": terms.qos,
        "gpu_model": terms.gpu_model,
        "partition": terms.partition,
        "nodes": terms.nodes,
        "exclude": terms.exclude,
        "features": terms.features,
        **({} if terms.cpus is None else {"cpus_per_gpu": terms.cpus}),
        "memory_bytes_per_gpu": float(memory_bytes(terms)),
        "time_limit_s": terms.lease_s,
        "preemptible": terms.preemptible,
        "cwd": str(folder),
        "output": str(logs / f"serve-{name}-%j.log"),
    }


def is_asked_for(spec: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Whether a lease is as the file has it now: a front that is started anew finds those of the one before.

    Args:
        spec: Of its job, as the manager tells it; a key that it does not tell is taken for the same.
        job: As one would be asked for now.
    """
    keys = [*_SAME_KEYS, *(key for key in _SAID_KEYS if job.get(key, "") != "")]
    return all(_meant(key, spec.get(key, job[key])) == _meant(key, job[key]) for key in keys if key in job)


def _meant(key: str, value: Any) -> object:
    """What a key of a job says, however it is written; of the command only the worker's arguments."""
    if key == "argv":
        words, length = list(value), len(WORKER_WORDS)
        return next((words[at:] for at in range(len(words)) if tuple(words[at : at + length]) == WORKER_WORDS), words)
    if key == "gpu_model":
        return set(models_of(value))
    return set(value) if key in ("nodes", "exclude", "features") else value
