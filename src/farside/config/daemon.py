"""Settings of `farside daemon`, the donor."""

from dataclasses import dataclass
from pathlib import Path

from farside.config.settings import choice, count, endpoints, fraction, path, percent, seconds, size, text
from farside.config.shared import LogSettings, MemorySettings, MetricsSettings, NodeSettings, ProcSettings
from farside.units import TIB

# A table: one setting, one line. A meaning that does not fit is on the next line.
# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig(NodeSettings, MemorySettings, ProcSettings, MetricsSettings, LogSettings):
    """Settings of a donor. Bytes and seconds; the names say which."""

    listen: tuple[str, ...] = endpoints(("tcp:0.0.0.0:7677",),
        "Endpoints for borrowers: tcp:HOST:PORT; unix:PATH, which lends by shared memory")
    rdma: str = choice("auto", "auto off", "auto: borrowers read and write by RDMA if this machine has it")
    rdma_address: str = text("", "IP address of this machine for RDMA; empty: the address that a borrower connected to")
    memory_total_bytes: int = size(0, 0, 1024 * TIB,
        "Memory that the donor counts on; 0: all that the machine (or cgroup) has")
    headroom_bytes: int = size(0, 0, 1024 * TIB,
        "Free memory that is never lent (HeadRoom); 0: 1/8 of memory_total_bytes")
    headroom_hysteresis_bytes: int = size(0, 0, 1024 * TIB,
        "Free memory above headroom_bytes required to lend more; 0: one slab")
    ewma_beta: float = fraction(0.2, 0.01, 1, "Weight of the newest sample in the average of the memory used by others")
    sample_period_s: float = seconds(1.0, 0.05, 60, "Time between two samples of memory use")
    cgroup: str = text("", "Folder of the cgroup whose memory limit and use count; empty: those of the machine")
    psi_full_pct_limit: float = percent(0.0, 0, 100,
        "Memory pressure (PSI full avg10) above which slabs are recalled; 0: off")
    preallocate_slabs: int = count(2, 0, 1024, "Zeroed slabs kept ready, so that mapping one takes one round trip")
    max_slabs: int = count(0, 0, 65536, "Maximum number of slabs at once; 0: as many as memory allows")
    quota_slabs_per_borrower: int = count(0, 0, 65536, "Maximum number of slabs of one borrower; 0: no limit")
    evict_extra: int = count(-1, -1, 1024,
        "E': slabs asked for their activity in addition to the E evicted; -1: as many as E")
    migrate_deadline_s: float = seconds(5.0, 0.05, 600, "Time a borrower has to move a recalled slab to another donor")
    evict_deadline_s: float = seconds(0.5, 0.01, 60, "Time a borrower has to release a slab that is needed at once")
    lease_expiry_s: float = seconds(30.0, 1, 3600, "Silence of a borrower after which its slabs are taken back")
    hugepages: str = choice("auto", "auto off", "auto: slabs use huge pages if the machine has any")
    admin_socket: Path = path("/run/farside/daemon.sock", "Unix socket for `farside status` and `farside admin`")
