"""Swap of this node that is a Farside device: /proc/swaps, and what /sys says of who serves each nbd device."""

from pathlib import Path

from farside.agent import messages as m
from farside.errors import ConfigError
from farside.kmod_shim.nbd_sysfs import device_index, read_block
from farside.kmod_shim.swap_table import read_swaps

OURS = "farside:"  # what `farside swap attach` calls a device of ours in /sys/block/nbdX/backend (Linux 5.14)


def read_farside_swap(root: Path) -> m.Swap | None:
    """All Farside devices that this node swaps to, as one; None where it has none. ``root`` has proc/ and sys/."""
    areas = [area for area in read_swaps(root) if _is_ours(root, area.path)]
    if not areas:
        return None
    return m.Swap(size_bytes=sum(area.size_bytes for area in areas), used_bytes=sum(area.used_bytes for area in areas))


def _is_ours(root: Path, path: str) -> bool:
    try:
        block = read_block(root, device_index(path))
    except ConfigError:  # no nbd device
        return False
    return block is not None and block.backend.startswith(OURS)
