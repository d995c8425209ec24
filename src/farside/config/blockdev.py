"""What `farside blockdev`, the borrower, can be told."""

from dataclasses import dataclass, field
from pathlib import Path

from farside.config.settings import Kind, about
from farside.geometry import CLUSTER_BYTES
from farside.units import GIB, MIB, TIB

# fmt: off (a table: one setting, then what it means)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One [[fault]]: spoils one in ``every`` operations on a donor, for tests and drills."""

    donor: str = field(metadata=about(Kind.TEXT, "Node name of the donor, or 'disk' for the backup disk"))
    kind: str = field(
        metadata=about(
            Kind.CHOICE,
            "What happens to the operation",
            choices=("delay", "error", "short", "disconnect", "corrupt", "hang"),
        )
    )
    every: int = field(
        default=1, metadata=about(Kind.COUNT, "One in so many operations is hit; 0: none", low=0, high=2**32 - 1)
    )
    delay_s: float = field(default=0.0, metadata=about(Kind.SECONDS, "How long, for kind 'delay'", low=0, high=3600))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockdevConfig:
    """Settings of a borrower. Bytes and seconds; the names say which."""

    name: str = field(
        default="swap0", metadata=about(Kind.TEXT, "Export name of the device, and its name towards donors")
    )
    node: str = field(
        default="", metadata=about(Kind.TEXT, "Name of this machine in the cluster; empty: its host name")
    )
    size_bytes: int = field(
        default=GIB,
        metadata=about(
            Kind.BYTES,
            "Size of the device; a multiple of 2 MiB, and of slab_bytes where `farside swap attach` is to take it",
            low=CLUSTER_BYTES,
            high=16 * TIB,
        ),
    )
    slab_bytes: int = field(
        default=64 * MIB,
        metadata=about(
            Kind.BYTES, "Size of a slab; a power of two, the same at every donor", low=CLUSTER_BYTES, high=GIB
        ),
    )
    listen: tuple[str, ...] = field(
        default=("unix:/run/farside/nbd.sock",),
        metadata=about(Kind.ENDPOINTS, "Where NBD clients reach the device: unix:PATH, tcp:HOST:PORT"),
    )
    key_file: Path = field(
        default=Path("/etc/farside/key"),
        metadata=about(Kind.PATH, "The cluster's keys, one a line, the preferred first; readable by its owner only"),
    )
    peers_file: Path = field(
        default=Path("/etc/farside/peers.toml"),
        metadata=about(Kind.PATH, "The donors, a [[donor]] with node and control each; read again when it changes"),
    )
    transport: str = field(
        default="auto",
        metadata=about(
            Kind.CHOICE,
            "How pages travel; auto: shm to donors on this host, to others rdma where both have it, else tcp; "
            "shm: the same without rdma; rdma, tcp: nothing else",
            choices=("auto", "shm", "rdma", "tcp"),
        ),
    )
    protection: str = field(
        default="disk",
        metadata=about(Kind.CHOICE, "What the second copy of a page is", choices=("disk", "replica", "none")),
    )
    i_accept_data_loss: bool = field(
        default=False,
        metadata=about(Kind.FLAG, "Must be true for protection = 'none': a lost donor then loses pages for good"),
    )
    disk_path: Path = field(
        default=Path(),
        metadata=about(Kind.PATH, "Backup file or partition, at least size_bytes; for protection = 'disk'"),
    )
    donors_hold: str = field(
        default="hot",
        metadata=about(
            Kind.CHOICE,
            "What donors hold besides the disk: hot: pages that are used often; all: every page, so that a disk that "
            "breaks loses none, for as much room at donors as the device is large; twice: every page at two donors, so "
            "that none is lost with two of the three, for twice that room",
            choices=("hot", "all", "twice"),
        ),
    )
    encrypt_disk: bool = field(
        default=True, metadata=about(Kind.FLAG, "Encrypt what goes to the disk with a key that is never stored")
    )
    pending_bytes: int = field(
        default=64 * MIB,
        metadata=about(
            Kind.BYTES, "Payload that may wait for the disk, for each worker; a power of two", low=16 * MIB, high=GIB
        ),
    )
    workers: int = field(
        default=4, metadata=about(Kind.COUNT, "NBD connections served at once, a thread each", low=1, high=16)
    )
    deadline_s: float = field(
        default=1.0, metadata=about(Kind.SECONDS, "An answer later than this makes a donor suspect", low=0.01, high=60)
    )
    grace_s: float = field(
        default=5.0,
        metadata=about(Kind.SECONDS, "How long a donor may stay suspect before it is given up", low=0, high=600),
    )
    hedge_s: float = field(
        default=0.005,
        metadata=about(
            Kind.SECONDS, "A read older than this is asked of a second copy as well; 0: never", low=0, high=60
        ),
    )
    spin_us: int = field(
        default=50,
        metadata=about(
            Kind.MICROSECONDS, "Longest busy wait for the next request before a worker sleeps", low=0, high=10_000
        ),
    )
    hot_slab_pages_per_s_per_gib: float = field(
        default=20.0,
        metadata=about(
            Kind.RATE, "HotSlab: page I/O above which a range of the device is given a slab", low=0, high=1e9
        ),
    )
    cold_slab_pages_per_s_per_gib: float = field(
        default=0.0,
        metadata=about(Kind.RATE, "ColdSlab: page I/O below which a slab is given back; 0: off", low=0, high=1e9),
    )
    ewma_alpha: float = field(
        default=0.2,
        metadata=about(Kind.FRACTION, "Weight of the newest second in a range's activity", low=0.01, high=1),
    )
    placement_choices: int = field(
        default=2,
        metadata=about(Kind.COUNT, "Donors that are asked before one is taken (power of two choices)", low=1, high=256),
    )
    pressure_guard: str = field(
        default="attach",
        metadata=about(
            Kind.CHOICE,
            "When processes are made fit to be swapped to: when `farside swap attach` asks, at the start, or never",
            choices=("attach", "start", "off"),
        ),
    )
    state_dir: Path = field(
        default=Path("/run/farside"),
        metadata=about(Kind.PATH, "Folder made at the start; sockets go where listen and admin_socket say"),
    )
    metrics_listen: str = field(
        default="", metadata=about(Kind.ADDRESS, "HOST:PORT of the Prometheus metrics; empty: none")
    )
    admin_socket: Path = field(
        default=Path("/run/farside/blockdev.sock"), metadata=about(Kind.PATH, "Unix socket that `farside status` asks")
    )
    log_level: str = field(
        default="info",
        metadata=about(
            Kind.CHOICE, "The least important message that is logged", choices=("debug", "info", "warning", "error")
        ),
    )
    fault: tuple[FaultRule, ...] = field(
        default=(),
        metadata=about(Kind.RULES, "[[fault]] tables: operations to spoil, for tests and drills", row=FaultRule),
    )

    @property
    def copies(self) -> int:
        """Donors that shall have each page."""
        return 2 if self.protection == "replica" or self.donors_hold == "twice" else 1
