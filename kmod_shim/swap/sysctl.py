"""Machine-wide settings that swap served by a process needs, and the restore of their earlier values.

page-cluster 5: a page-in may bring up to 32 pages, the most that the kernel knows. The kernel takes that many only
where a program goes through its memory in order (it counts which of them were used), and one round trip for all of them
costs little more than for one.
min_free_kbytes: the reserve from which network and interrupts, and we ourselves (guard.py), allocate while all other
programs wait for us.
watermark_boost_factor 0: otherwise the kernel adds to that reserve by itself when memory is in pieces, up to one and a
half times as much again. It takes the addition back only when kswapd has done its work, and kswapd waits for us.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from farside.kmod_shim.nbd.sysfs import MIN_FREE, PAGE_CLUSTER, WATERMARK_BOOST, read_number, write_number
from farside.kmod_shim.preflight import read_meminfo, wanted_min_free_bytes
from farside.kmod_shim.swap.record import Attached, save_record
from farside.units import KIB

READAHEAD = 5  # vm.page-cluster, a power of two; SWAP_RA_ORDER_CEILING is the kernel's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """Values before we changed them; None: not changed."""

    page_cluster: int | None = None
    min_free_kbytes: int | None = None
    watermark_boost: int | None = None


def tune_machine(root: Path) -> Before:
    """Set all three where they differ. Raises ConfigError; then nothing is changed."""
    wanted_kib = wanted_min_free_bytes(read_meminfo(root).get("MemTotal", 0)) // KIB
    free_kib, cluster = read_number(root, MIN_FREE), read_number(root, PAGE_CLUSTER)
    before = Before()
    try:
        # Each value is noted only when it was changed: a failure puts back exactly those. A larger reserve is left as
        # it is.
        if free_kib is not None and free_kib < wanted_kib:
            write_number(root, MIN_FREE, wanted_kib)
            before = replace(before, min_free_kbytes=free_kib)
        if cluster not in (None, READAHEAD):
            write_number(root, PAGE_CLUSTER, READAHEAD)
            before = replace(before, page_cluster=cluster)
        if boost := read_number(root, WATERMARK_BOOST):
            write_number(root, WATERMARK_BOOST, 0)
            before = replace(before, watermark_boost=boost)
    except BaseException:
        restore_machine(root, before)
        raise
    return before


def restore_machine(root: Path, before: Before) -> None:
    """Restore the earlier values. Raises ConfigError."""
    if before.page_cluster is not None:
        write_number(root, PAGE_CLUSTER, before.page_cluster)
    if before.min_free_kbytes is not None:
        write_number(root, MIN_FREE, before.min_free_kbytes)
    if before.watermark_boost is not None:
        write_number(root, WATERMARK_BOOST, before.watermark_boost)


def leave_machine(root: Path, gone: Attached, others: tuple[Attached, ...]) -> None:
    """After a device has gone: the last swap device restores the values, an earlier one passes them to another."""
    before = Before(
        page_cluster=gone.page_cluster_before,
        min_free_kbytes=gone.min_free_kbytes_before,
        watermark_boost=gone.watermark_boost_before,
    )
    # The device that came first has the machine's earlier values in its record, and may leave before the others.
    heir = next((other for other in others if other.is_swap), None)
    if heir is None:
        restore_machine(root, before)
    elif before != Before():
        save_record(
            root,
            replace(
                heir,
                page_cluster_before=_either(heir.page_cluster_before, before.page_cluster),
                min_free_kbytes_before=_either(heir.min_free_kbytes_before, before.min_free_kbytes),
                watermark_boost_before=_either(heir.watermark_boost_before, before.watermark_boost),
            ),
        )


# The heir's own value where it has one, otherwise the value that the device before it has left.
def _either(first: int | None, second: int | None) -> int | None:
    return second if first is None else first
