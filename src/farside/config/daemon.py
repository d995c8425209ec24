"""What `farside daemon`, the donor, can be told."""

from dataclasses import dataclass, field
from pathlib import Path

from farside.config.settings import Kind, about
from farside.geometry import CLUSTER_BYTES
from farside.units import GIB, MIB, TIB

# fmt: off (a table: one setting, then what it means)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """Settings of a donor. Bytes and seconds; the names say which."""

    node: str = field(
        default="", metadata=about(Kind.TEXT, "Name of this machine in the cluster; empty: its host name")
    )
    listen: tuple[str, ...] = field(
        default=("tcp:0.0.0.0:7677",),
        metadata=about(
            Kind.ENDPOINTS, "Where borrowers reach this donor: tcp:HOST:PORT, unix:PATH (unix lends by shared memory)"
        ),
    )
    rdma: str = field(
        default="auto",
        metadata=about(
            Kind.CHOICE, "auto: borrowers may read and write by RDMA where this machine can", choices=("auto", "off")
        ),
    )
    rdma_address: str = field(
        default="",
        metadata=about(
            Kind.TEXT, "IP address of this machine on the RDMA network; empty: the one that a borrower came to"
        ),
    )
    key_file: Path = field(
        default=Path("/etc/farside/key"),
        metadata=about(Kind.PATH, "The cluster's keys, one a line, the preferred first; readable by its owner only"),
    )
    slab_bytes: int = field(
        default=64 * MIB,
        metadata=about(
            Kind.BYTES, "Size of a slab, the unit that is lent; a power of two", low=CLUSTER_BYTES, high=GIB
        ),
    )
    memory_total_bytes: int = field(
        default=0,
        metadata=about(
            Kind.BYTES,
            "Memory that this donor reckons with; 0: what the machine (or cgroup) has",
            low=0,
            high=1024 * TIB,
        ),
    )
    headroom_bytes: int = field(
        default=0,
        metadata=about(
            Kind.BYTES,
            "Free memory that is never lent (HeadRoom); 0: one eighth of memory_total_bytes",
            low=0,
            high=1024 * TIB,
        ),
    )
    headroom_hysteresis_bytes: int = field(
        default=0,
        metadata=about(
            Kind.BYTES, "Free memory above headroom_bytes before more is lent; 0: one slab", low=0, high=1024 * TIB
        ),
    )
    ewma_beta: float = field(
        default=0.2,
        metadata=about(Kind.FRACTION, "Weight of the newest sample of everybody else's memory use", low=0.01, high=1),
    )
    sample_period_s: float = field(
        default=1.0, metadata=about(Kind.SECONDS, "Time between two samples of memory use", low=0.05, high=60)
    )
    proc_root: Path = field(default=Path("/proc"), metadata=about(Kind.PATH, "Where meminfo and pressure are read"))
    cgroup: str = field(
        default="",
        metadata=about(
            Kind.TEXT, "Folder of the cgroup whose limit and use count instead of the machine's; empty: the machine's"
        ),
    )
    psi_full_pct_limit: float = field(
        default=0.0,
        metadata=about(
            Kind.PERCENT,
            "Memory pressure (PSI full avg10) above which slabs are recalled whatever is free; 0: off",
            low=0,
            high=100,
        ),
    )
    preallocate_slabs: int = field(
        default=2,
        metadata=about(Kind.COUNT, "Zeroed slabs kept ready, so that a map takes one round trip", low=0, high=1024),
    )
    max_slabs: int = field(
        default=0,
        metadata=about(Kind.COUNT, "Slabs that may stand at once; 0: as many as memory allows", low=0, high=65536),
    )
    quota_slabs_per_borrower: int = field(
        default=0, metadata=about(Kind.COUNT, "Slabs that one borrower may hold; 0: no quota", low=0, high=65536)
    )
    evict_extra: int = field(
        default=-1,
        metadata=about(
            Kind.COUNT, "E': slabs asked for their activity beyond the E that go; -1: as many as E", low=-1, high=1024
        ),
    )
    migrate_deadline_s: float = field(
        default=5.0,
        metadata=about(
            Kind.SECONDS, "Time a borrower gets to move a recalled slab to another donor", low=0.05, high=600
        ),
    )
    evict_deadline_s: float = field(
        default=0.5, metadata=about(Kind.SECONDS, "Time a borrower gets to let a slab go at once", low=0.01, high=60)
    )
    lease_expiry_s: float = field(
        default=30.0,
        metadata=about(Kind.SECONDS, "Silence of a borrower after which its slabs are taken back", low=1, high=3600),
    )
    hugepages: str = field(
        default="auto",
        metadata=about(Kind.CHOICE, "auto: slabs stand on huge pages where there are some", choices=("auto", "off")),
    )
    metrics_listen: str = field(
        default="", metadata=about(Kind.ADDRESS, "HOST:PORT of the Prometheus metrics; empty: none")
    )
    admin_socket: Path = field(
        default=Path("/run/farside/daemon.sock"), metadata=about(Kind.PATH, "Unix socket that `farside status` asks")
    )
    log_level: str = field(
        default="info",
        metadata=about(
            Kind.CHOICE, "The least important message that is logged", choices=("debug", "info", "warning", "error")
        ),
    )
