"""Settings of `farside blockdev`, the borrower."""

from dataclasses import dataclass, field
from pathlib import Path

from farside.config.settings import (
    Kind,
    about,
    choice,
    count,
    endpoints,
    flag,
    fraction,
    microseconds,
    path,
    rate,
    seconds,
    size,
    tables,
    text,
)
from farside.config.shared import LogSettings, MemorySettings, MetricsSettings, NodeSettings, TlsSettings
from farside.geometry import GRANULE_BYTES
from farside.units import GIB, MIB, TIB

_FAULTS = "delay error short disconnect corrupt hang"

# A table: one setting, one line. A meaning that does not fit is on the next line.
# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One [[fault]]: spoils one in ``every`` operations on a donor, for tests and drills."""

    donor: str = field(metadata=about(Kind.TEXT, "Node name of the donor, or 'disk' for the backup disk"))
    kind: str = field(metadata=about(Kind.CHOICE, "What happens to the operation", choices=_FAULTS))
    every: int = count(1, 0, 2**32 - 1, "One in this many operations fails; 0: none")
    delay_s: float = seconds(0.0, 0, 3600, "Length of the delay, for kind 'delay'")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockdevConfig(NodeSettings, MemorySettings, TlsSettings, MetricsSettings, LogSettings):
    """Settings of a borrower. Bytes and seconds; the names say which."""

    name: str = text("swap0", "Name of the device: of the NBD export, and for donors")
    size_bytes: int = size(GIB, GRANULE_BYTES, 16 * TIB,
        "Size of the device; a multiple of 2 MiB, and for `farside swap attach` of slab_bytes")
    listen: tuple[str, ...] = endpoints(("unix:/run/farside/nbd.sock",),
        "Endpoints for NBD clients: unix:PATH, tcp:HOST:PORT")
    listen_unproved: bool = flag(False,
        "Serve every client that comes by tcp:, also over a network; otherwise this user's and root's of this machine, "
        "and who proves itself by TLS")
    tls_psk_file: Path = path("",
        "Pre-shared keys of clients that come by tcp: with TLS, one USER:HEX a line, as psktool writes them; readable "
        "by its owner only; empty: none")
    tls_client_ca: Path = path("",
        "CA certificates, PEM, with revocation lists, of clients that come by tcp: with TLS; empty: none")
    peers_file: Path = path("/etc/farside/peers.toml",
        "List of donors: a [[donor]] table each, with node and control; read again when it changes")
    transport: str = choice("auto", "auto shm rdma tcp",
        "How pages travel. auto: shm on this host, otherwise rdma if both have it, otherwise tcp; shm: auto without "
        "rdma; rdma, tcp: only that")
    protection: str = choice("disk", "disk replica none",
        "Where the second copy of a page is: on the backup disk, at a second donor, nowhere")
    i_accept_data_loss: bool = flag(False, "Required for protection = 'none': pages of a lost donor are lost for good")
    disk_path: Path = path("", "Backup file or partition for protection = 'disk', at least size_bytes")
    donors_hold: str = choice("hot", "hot all twice",
        "Pages that donors hold in addition to the disk. hot: those used often; all: every page, so that a broken disk "
        "loses none (needs size_bytes at donors); twice: every page at two donors, so that any two of three may break")
    encrypt_disk: bool = flag(True, "Encrypt what is written to the disk, with a key that is never stored")
    encrypt_remote: bool = flag(True,
        "Encrypt pages that leave for donors: none of them, and nobody on the way, reads or changes one unseen")
    pending_bytes: int = size(64 * MIB, 16 * MIB, GIB,
        "Memory for writes that wait for the disk, per worker; a power of two")
    workers: int = count(4, 1, 16, "NBD connections served at once, one thread each")
    deadline_s: float = seconds(1.0, 0.01, 60, "A donor that takes longer than this to answer is suspect")
    grace_s: float = seconds(5.0, 0, 600, "Time that a donor may stay suspect before it is given up")
    hedge_s: float = seconds(0.005, 0, 60,
        "Floor: a read that is late for its donor and older than this is also sent to a second copy; 0: never")
    rdma_retry_s: float = seconds(60.0, 1, 86_400, "After a fallback to tcp: time until rdma is tried again")
    spin_us: int = microseconds(50, 0, 10_000, "Maximum busy wait for the next request before a worker sleeps")
    hot_slab_pages_per_s_per_gib: float = rate(20.0, 0, 1e9,
        "HotSlab: page I/O above which a region of the device gets a slab")
    cold_slab_pages_per_s_per_gib: float = rate(0.0, 0, 1e9,
        "ColdSlab: page I/O below which a slab is given back; 0: off")
    ewma_alpha: float = fraction(0.2, 0.01, 1, "Weight of the newest second in the activity of a region")
    placement_choices: int = count(2, 1, 256, "Donors asked before one is chosen (power of two choices)")
    pressure_guard: str = choice("attach", "attach start off",
        "When to protect this process from memory pressure: at `farside swap attach`, at start, or never")
    state_dir: Path = path("/run/farside", "Folder made at start; sockets are where listen and admin_socket say")
    admin_socket: Path = path("/run/farside/blockdev.sock", "Unix socket for `farside status` and `farside admin`")
    fault: tuple[FaultRule, ...] = tables(FaultRule, "[[fault]] tables: operations to spoil, for tests and drills")

    @property
    def has_tls(self) -> bool:
        """Whether clients that come by tcp: can prove themselves by TLS."""
        return self.tls_psk_file.is_absolute() or self.tls_cert.is_absolute()

    @property
    def copies(self) -> int:
        """Number of donors that hold each page."""
        return 2 if self.protection == "replica" or self.donors_hold == "twice" else 1
