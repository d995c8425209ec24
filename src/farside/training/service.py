"""Which service a training script uses: the one that it names, or the one of the job that it runs in."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from farside.errors import ConfigError
from farside.training.member import source_from_environment
from farside.training.relay_plan import SOCKET
from farside.training.static_plan import JOB, KEY, KEY_FILE, SERVICE, START, static_plan_from


def source_of(
    service: Sequence[str] | str,
    key_file: str | os.PathLike[str] | None,
    *,
    job: str | None,
    rank: int | None,
    members: int | None,
) -> Any:
    """The source of plans that these arguments of `farside.attach` name.

    Raises:
        ConfigError: nothing names one, or not all of it.
    """
    for name, value in (("rank", rank), ("members", members)):
        if isinstance(value, bool) or not isinstance(value, SupportsIndex | str | None):
            raise ConfigError(f"farside.attach: {name} is {value!r}, not a whole number")
    named = tuple(service) if isinstance(service, Iterable) and not isinstance(service, str) else (service,)
    if not all(isinstance(one, str) for one in named):
        raise ConfigError(
            f"farside.attach: service is {service!r}", hint="name each Aggregator as unix:PATH or tcp:HOST:PORT"
        )
    if key_file is not None and not isinstance(key_file, str | os.PathLike):
        raise ConfigError(f"farside.attach: key_file is {key_file!r}, not a path")
    given = {"job": job, "rank": rank, "members": members, "key_file": key_file and os.fspath(key_file)}
    names = {"job": JOB, "rank": "RANK", "members": "WORLD_SIZE", "key_file": KEY_FILE}
    told = {names[name]: str(value) for name, value in given.items() if value is not None}
    for one, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if one in told and other not in told and not os.environ.get(other):
            raise ConfigError("farside.attach: of rank and members only one is given", hint="give both, or neither")
    if not any(named):
        if os.environ.get(SOCKET) and told:
            which = next(name for name, value in given.items() if value is not None)
            raise ConfigError(
                f"farside.attach: {which} is given, and this process is in a job of a manager's, which has its own",
                hint=f"leave {which} out, or name a service, too",
            )
        return static_plan_from({**os.environ, **told}) if told else source_from_environment()
    if key_file is None:
        raise ConfigError("farside.attach: service without key_file", hint="name the file with the service's key")
    # A key that a manager has given to this start is for the Aggregators of that job.
    own = {name: value for name, value in os.environ.items() if name not in (KEY, START)}
    return static_plan_from({**own, SERVICE: ",".join(named), **told})
