"""Which service a training script uses: the one that it names, or the one of the job that it runs in."""

import os
from collections.abc import Sequence
from typing import Any

from farside.errors import ConfigError
from farside.training.member import source_from_environment
from farside.training.static_plan import JOB, KEY_FILE, SERVICE, static_plan_from


def source_of(
    service: Sequence[str],
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
    if not service:
        return source_from_environment()
    if key_file is None:
        raise ConfigError("farside.attach: service without key_file", hint="name the file with the service's key")
    given = {JOB: job, "RANK": rank, "WORLD_SIZE": members}
    told = {name: str(value) for name, value in given.items() if value is not None}
    return static_plan_from({**os.environ, SERVICE: ",".join(service), KEY_FILE: os.fspath(key_file), **told})
