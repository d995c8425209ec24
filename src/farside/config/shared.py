"""Settings that several programs share; each program's class lists the groups that it uses.

A group has no slots of its own (``__slots__ = ()``): the class that takes it makes them, so several may be taken.
"""

from dataclasses import dataclass
from pathlib import Path

from farside.config.settings import address, choice, count, flag, path, seconds, size, text
from farside.geometry import GRANULE_BYTES
from farside.units import GIB, MIB

# A table: one setting, one line. A meaning that does not fit is on the next line.
# fmt: off


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What this machine is called."""

    __slots__ = ()
    node: str = text("", "Name of this machine in the cluster; empty: its host name")


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """What donors and borrowers agree on."""

    __slots__ = ()
    key_file: Path = path("/etc/farside/key",
        "Keys of the cluster, one per line, preferred first; readable by its owner only")
    slab_bytes: int = size(64 * MIB, GRANULE_BYTES, GIB,
        "Size of a slab, the unit that is lent; a power of two, equal on all nodes")


@dataclass(frozen=True, kw_only=True)
class ProcSettings:
    """Where the kernel's figures are."""

    __slots__ = ()
    proc_root: Path = path("/proc", "Folder with the kernel's meminfo and pressure files")


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """This program's own certificate."""

    __slots__ = ()
    tls_cert: Path = path("", "Certificate of this program for TLS, PEM, with its chain; empty: none")
    tls_key: Path = path("", "Private key of tls_cert, PEM")


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """Which jobs start first, for the manager and for Slurm."""

    __slots__ = ()
    policy: str = text("las", "Policy that orders jobs; `farside sim run --help` names them")
    policy_settings: str = text("", "Settings of the policy: NAME=VALUE, separated by semicolons")
    policy_history: Path = path("",
        "Log of past jobs from which the policy learns before the first job, in a format of `farside sim`; empty: none")
    policy_models: Path = path("", "Folder with a model that `farside predict fit` wrote; empty: none is loaded")


@dataclass(frozen=True, kw_only=True)
class PowerSettings:
    """Which nodes sleep, for the manager and for Slurm."""

    __slots__ = ()
    power: str = choice("none", "none ces paper rule vanilla", "Policy that lets idle nodes sleep; see power.md")
    power_settings: str = text("", "Settings of the power policy: NAME=VALUE, separated by semicolons")
    holidays_file: Path = path("",
        "File with a public holiday a line, such as 2024-12-25, for forecasts of the power policy; empty: none")
    power_step_s: float = seconds(600.0, 1, 86400, "Time between two decisions of the power policy")
    power_floor: int = count(1, 0, 1000000, "Nodes that always stay on")
    power_min_on_s: float = seconds(600.0, 0, 1e9, "Minimum time that a node stays on after it booted")
    always_on: str = text("", "Nodes that never sleep, separated by commas")
    idle_w: int = count(800, 0, 1e5, "Power of an idle node in watts, to compute the energy saved")


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Where Prometheus asks."""

    __slots__ = ()
    metrics_listen: str = address("", "HOST:PORT of the Prometheus metrics; empty: none")


@dataclass(frozen=True, kw_only=True)
class JobMetricsSettings(MetricsSettings):
    """Where Prometheus asks, and whether it gets metrics of single jobs."""

    __slots__ = ()
    metrics_jobs: bool = flag(True,
        "Metrics of single jobs, with their numbers and users, for whoever reaches metrics_listen; false: sums alone")


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """What is logged."""

    __slots__ = ()
    log_level: str = choice("info", "debug info warning error", "Least severe messages that are logged")
