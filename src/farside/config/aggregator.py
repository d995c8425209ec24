"""Settings of `farside aggregator`."""

from dataclasses import dataclass
from pathlib import Path

from farside.config.settings import address, choice, count, endpoints, path, seconds, size
from farside.config.shared import LogSettings, MetricsSettings, NodeSettings
from farside.units import TIB

# A table: one setting, one line. A meaning that does not fit is on the next line.
# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorConfig(NodeSettings, MetricsSettings, LogSettings):
    """Settings of an Aggregator. Bytes and seconds; the names say which."""

    listen: tuple[str, ...] = endpoints(("unix:/run/farside/aggregator-members.sock", "tcp:0.0.0.0:7683"),
        "Endpoints for training jobs: tcp:HOST:PORT; unix:PATH, by which this machine's processes share memory with it")
    address: str = address("",
        "HOST:PORT by which other machines reach it; empty: the node's name and the port of `listen`")
    rdma: str = choice("auto", "auto off",
        "auto: members on other machines are reached by RDMA if both machines have it, otherwise by TCP; off: by TCP")
    key_file: Path = path("",
        "Key file for jobs without a manager, which all their users have; empty: only jobs of the manager are served")
    cores: int = count(1, 1, 64, "Cores that it may keep busy; each job is updated on one of them")
    memory_bytes: int = size(0, 0, 1024 * TIB,
        "Memory that jobs may take; 0: a quarter of the machine's. A job that needs more than is left is refused")
    max_jobs: int = count(256, 1, 1024, "Maximum number of jobs at once")
    keep_s: float = seconds(60.0, 0, 86400, "Time for which a job's chunks are kept after its last process has gone")
    admin_socket: Path = path("/run/farside/aggregator.sock", "Unix socket for `farside status` and the node agent")
