"""What the manager makes of its settings, and of the files that they name, before it starts: the one list of it.

The manager reads all of them once and hands them to its parts; `farside config check` and `farside doctor` try each.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from farside.config import ManagerConfig
from farside.scheduler.manager.auth.tls_reload import tls_of
from farside.scheduler.manager.power.check_setup import PowerSetup, power_setup
from farside.scheduler.sim.learned_before import LearnedBefore, learned_before


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFiles:
    """What was read.

    Attributes:
        policy: The scheduling rules, and what their policy begins with.
        power: Energy policy and power drivers.
        tls: The certificate; None: there is none.
    """

    policy: LearnedBefore
    power: PowerSetup
    tls: ssl.SSLContext | None


READERS: Mapping[str, Callable[[ManagerConfig], Any]] = {
    "policy": learned_before,
    "power": power_setup,
    "tls": tls_of,
}
"""By field of `NamedFiles` what reads it; each raises FarsideError where the manager would not start."""


def named_files(config: ManagerConfig) -> NamedFiles:
    """Read all that the settings name.

    Raises:
        ConfigError: A setting or a file can't be used.
        Unavailable: It needs a package that is not installed.
    """
    return NamedFiles(**{name: read(config) for name, read in READERS.items()})
