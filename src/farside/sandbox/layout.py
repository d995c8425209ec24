"""Options, folder and process record of a sandbox.

DIR/sandbox.lock     says that the folder is a sandbox's, and, while one runs in it, that it is taken
DIR/sandbox.json     the record, rewritten whenever something starts or ends
DIR/sandbox.sock     admin socket of the sandbox itself
DIR/cluster.key      the key that donors and borrower share
DIR/peers.toml       where the borrower finds its donors
DIR/disk             backup disk, where protection is "disk" and no file was named
DIR/blockdev/        config, admin socket, log of the borrower
DIR/donors/dN/       the same for each donor, and proc/meminfo: the memory of the pretended machine it runs on

With --cluster there are DIR/manager.sock, DIR/manager/ and DIR/agents/ too; see `cluster`.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from farside.errors import ConfigError
from farside.units import MIB

LOCK_NAME = "sandbox.lock"
RECORD_NAME = "sandbox.json"
# What a sandbox makes in its folder beside the lock.
FILES = (RECORD_NAME, "sandbox.sock", "cluster.key", "peers.toml", "disk", "manager.sock")
FOLDERS = ("donors", "blockdev", "agents", "aggregators", "executors", "manager")
BORROWER = "borrower"
RUN_FOLDER = "run"
"""Of the manager, in its folder: its ``state_dir``."""

# Small donors want small slabs, or three of them have nothing to choose from; production's default is 64 MiB.
SLAB_BYTES_DEFAULT = 16 * MIB
WORKERS_DEFAULT = 8
# Headroom is what a donor keeps free for its own programs; an eighth is the default in production too, as the paper's
# 8 of 64 GB.
HEADROOM_SHARE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many nodes, how many GPUs each is said to have, and how many of the nodes have an Aggregator.

    ``executors``: how many, the last ones, are set aside for co-located jobs; these have no GPUs. ``later``: the agents
    of how many, the last ones, are not started with the others.
    """

    nodes: int
    gpus_per_node: int
    aggregators: int = 0
    executors: int = 0
    later: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of a sandbox, checked. ``program_settings``: TOML text by name by program (program_settings.py)."""

    donors: int
    donor_memory_bytes: int
    transport: str
    size_bytes: int
    slab_bytes: int
    listen: tuple[str, ...]
    protection: str
    disk: Path | None
    workers: int
    restart_donors: bool
    encrypt_remote: bool = True
    cluster: Shape | None = None
    program_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def headroom_bytes(self) -> int:
        """Memory each donor keeps free for others: an eighth of its own, at least one slab."""
        return max(self.slab_bytes, self.donor_memory_bytes // HEADROOM_SHARE)

    @property
    def copies(self) -> int:
        """Number of copies of each page in donors' memory."""
        return 2 if self.protection == "replica" else 1

    @property
    def lendable_bytes(self) -> int:
        """What all donors together lend when nobody squeezes them: all but headroom and one slab of hysteresis."""
        slabs = (self.donor_memory_bytes - self.headroom_bytes) // self.slab_bytes - 1
        return self.donors * slabs * self.slab_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One process of the sandbox. `pid` is 0 while it does not run."""

    name: str
    pid: int
    admin_socket: str
    config: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """The cluster plane of a sandbox; see `cluster`. ``endpoint`` is what ``farside submit --manager`` takes."""

    endpoint: str
    gpus_per_node: int
    manager: ProcessRecord
    agents: tuple[ProcessRecord, ...]
    aggregators: tuple[ProcessRecord, ...] = ()
    executors: tuple[ProcessRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """The processes of a sandbox, as in DIR/sandbox.json."""

    pid: int
    admin_socket: str
    transport: str
    protection: str
    size_bytes: int
    slab_bytes: int
    donor_memory_bytes: int
    headroom_bytes: int
    uris: tuple[str, ...]
    donors: tuple[ProcessRecord, ...]
    blockdev: ProcessRecord
    cluster: ClusterRecord | None = None

    def agent(self, name: str) -> ProcessRecord:
        """The agent of that name.

        Raises:
            ConfigError: There is none.
        """
        return _named(self.cluster.agents if self.cluster is not None else (), "agent", name)

    def aggregator(self, name: str) -> ProcessRecord:
        """The Aggregator of that name.

        Raises:
            ConfigError: There is none.
        """
        return _named(self.cluster.aggregators if self.cluster is not None else (), "Aggregator", name)

    def donor(self, name: str) -> ProcessRecord:
        """The donor of that name.

        Raises:
            ConfigError: There is none.
        """
        return _named(self.donors, "donor", name)


def _named(processes: Iterable[ProcessRecord], what: str, name: str) -> ProcessRecord:
    found = {process.name: process for process in processes}
    if name not in found:
        raise ConfigError(f"this sandbox has no {what} {name!r}, only {', '.join(found) or 'donors'}")
    return found[name]


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file's content so that a reader sees the old or the new, never a mix."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    fresh.replace(path)


def write_record(state: Path, record: SandboxRecord) -> None:
    """Puts the record into the sandbox's folder."""
    write_atomically(state / RECORD_NAME, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(state: Path) -> SandboxRecord:
    """The record of the sandbox that runs in this folder.

    Raises:
        ConfigError: None runs there, or its record is damaged.
    """
    try:
        return msgspec.json.decode((state / RECORD_NAME).read_bytes(), type=SandboxRecord)
    except FileNotFoundError:
        raise ConfigError(f"no sandbox runs in {state}", hint="start one with `farside sandbox --state`") from None
    except OSError as error:
        raise ConfigError(f"{state / RECORD_NAME}: {error.strerror}", hint="ask as the user who started it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{state / RECORD_NAME}: is damaged ({error})", hint="end that sandbox, start another"
        ) from None
