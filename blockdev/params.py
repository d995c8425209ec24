"""Parameters of the engine, made from the settings, and the memory files of a device."""

import os
from collections.abc import Mapping

import msgspec

from farside.blockdev.client.handshake import Export
from farside.blockdev.context import protection_of
from farside.blockdev.mapping.table import Table
from farside.blockdev.state import StateFile, control_bytes
from farside.config import BlockdevConfig
from farside.config.renamed import with_current_names
from farside.errors import ConfigError, EngineError, Unavailable
from farside.kmod_shim.engine.binding import GRANULE_BYTES, Device, Params

# A write that finds pending full waits this long, then fails. The kernel must get the error before its own request
# timeout (TIMEOUT_S in kmod_shim/nbd/message.py), which would cost it the connection.
FLUSH_WAIT_MS = 5000
NEVER_US = 0xFFFFFFFF  # no read is ever older: nothing is hedged


def decode_config(data: bytes) -> BlockdevConfig:
    """Decode the settings that ``main.py`` put into a memory file. Raises Unavailable: another version wrote them."""
    try:
        # The settings were written by the version that started the device, with the names of that version.
        values = with_current_names(BlockdevConfig, msgspec.json.decode(data, type=dict[str, object]))
        # A device of an earlier version, which let everybody in, goes on with the clients that it has.
        values.setdefault("listen_unproved", True)
        return msgspec.convert(values, BlockdevConfig, dec_hook=lambda kind, value: kind(value))
    except msgspec.MsgspecError as error:
        raise Unavailable(f"this version does not understand the running device's settings: {error}") from error


def engine_params(config: BlockdevConfig) -> Params:
    """The engine's parameters."""
    return Params(
        size_bytes=config.size_bytes,
        slab_bytes=config.slab_bytes,
        pending_bytes=config.pending_bytes,
        workers=config.workers,
        protection=protection_of(config),
        deadline_ms=max(1, int(config.deadline_s * 1000)),
        hedge_us=int(config.hedge_s * 1e6) if config.hedge_s > 0 else NEVER_US,
        spin_us=config.spin_us,
        flush_wait_ms=FLUSH_WAIT_MS,
        encrypt_disk=int(config.encrypt_disk and config.protection == "disk"),
        encrypt_remote=int(config.encrypt_remote),
    )


def make_memory(config: BlockdevConfig) -> dict[str, int]:
    """New, empty memory files for one device: "state" is the engine's, "control" is ours.

    Raises:
        ConfigError: the engine does not take these settings, or there is no memory for them.
    """
    fds: dict[str, int] = {}
    try:
        sizes = {
            "state": Device.state_bytes(engine_params(config)),
            "control": control_bytes(extents=extents_per_slab(config)),
        }
        for name, size_bytes in sizes.items():
            fds[name] = os.memfd_create(f"farside-{config.name}-{name}", os.MFD_CLOEXEC)
            # Sparse: memory is taken only for what is written.
            os.truncate(fds[name], size_bytes)
    except (EngineError, OSError) as error:
        for fd in fds.values():
            os.close(fd)
        raise ConfigError(f"the engine refuses these settings: {error}") from error
    return fds


def check_memory(config: BlockdevConfig, fds: Mapping[str, int]) -> None:
    """Check that this program can take over the device in these memory files; they may be in use.

    Raises:
        Unavailable: another version wrote them, in another layout.
    """
    try:
        # Both only read, so the process that serves the device now is not disturbed.
        Device.state_check(engine_params(config), fds["state"])
        Table(StateFile(fds["control"]), extents=extents_per_slab(config))
    except (EngineError, msgspec.MsgspecError) as error:
        raise Unavailable(
            f"this version can't go on with the running device: {error}",
            hint="stop and start the device, or install the previous version again",
        ) from error


def export_of(config: BlockdevConfig) -> Export:
    """Export that NBD clients are offered."""
    return Export(
        name=config.name,
        description=f"Farside remote memory, {config.protection} behind it",
        size_bytes=config.size_bytes,
    )


def extents_per_slab(config: BlockdevConfig) -> int:
    """Number of granules that fit in one slab."""
    return config.slab_bytes // GRANULE_BYTES
