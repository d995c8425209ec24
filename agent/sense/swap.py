"""Swap of this node that is a Farside device, by /proc/swaps and by what /sys says of each nbd device.

Tasks cannot have what the node's own programs have swapped out: what is used, less what the tasks' cgroups say that
they have swapped out; on a node that swaps elsewhere too, that of tasks is taken to be on the Farside device.
"""

from collections.abc import Iterable
from pathlib import Path

from farside.agent import messages as m
from farside.errors import ConfigError
from farside.kmod_shim.nbd.sysfs import device_index, read_block
from farside.kmod_shim.swap.table import read_swaps

SWAPPED = "memory.swap.current"
OURS = "farside:"  # what `farside swap attach` calls a device of ours in /sys/block/nbdX/backend (Linux 5.14)


def read_farside_swap(root: Path, tasks: Iterable[Path] = ()) -> m.Swap | None:
    """All Farside devices that this node swaps to, as one; None where it has none.

    ``root`` has proc/ and sys/; ``tasks`` are the cgroups of those that run.
    """
    areas = [area for area in read_swaps(root) if _is_ours(root, area.path)]
    if not areas:
        return None
    used_bytes = sum(area.used_bytes for area in areas)
    # Not below 0: the table and the cgroups are read one after another.
    own_bytes = max(0, used_bytes - sum(map(_swapped_bytes, tasks)))
    return m.Swap(size_bytes=sum(area.size_bytes for area in areas), used_bytes=used_bytes, own_bytes=own_bytes)


def _swapped_bytes(cgroup: Path) -> int:
    """Swap of a task; in a systemd scope the controller is the scope's. 0 where it has ended, or nothing counts."""
    scope = (cgroup.parent,) if cgroup.parent.suffix == ".scope" else ()
    for folder in (cgroup, *scope):
        try:
            return int((folder / SWAPPED).read_text())
        except (OSError, ValueError):
            continue
    return 0


def _is_ours(root: Path, path: str) -> bool:
    try:
        block = read_block(root, device_index(path))
    except ConfigError:  # no nbd device
        return False
    return block is not None and block.backend.startswith(OURS)
