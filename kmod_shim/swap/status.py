"""Status of attached devices for `farside swap status`, from the kernel and the serving process."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farside.errors import FarsideError
from farside.kmod_shim.nbd import sysfs
from farside.kmod_shim.preflight import Check, Outcome
from farside.kmod_shim.swap.facts import ask_served, guard_of
from farside.kmod_shim.swap.record import Attached, live_records
from farside.kmod_shim.swap.table import SwapArea, find_area, read_swaps


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device.

    Attributes:
        swap: Its line of /proc/swaps; None when it is attached as a block device.
        served: Somebody answers at the admin socket; False is no fault of the pages, which have their own way.
        guard: The checks of its processes; empty when they can't be asked for.
        server_clients: Connections that the server has now; ``attached.connections`` or more when all is well.
    """

    attached: Attached
    block: sysfs.BlockState
    swap: SwapArea | None
    served: bool
    server_clients: int
    guard: tuple[Check, ...]

    @property
    def is_guarded(self) -> bool:
        """True when every check of its processes is well."""
        return bool(self.guard) and all(check.outcome is Outcome.OK for check in self.guard)


def device_infos(root: Path) -> Iterator[DeviceInfo]:
    """Every device that `farside swap attach` made and the kernel still has connected."""
    areas = read_swaps(root)
    for record in live_records(root):
        block = sysfs.read_block(root, record.index)
        # It went away since live_records looked.
        if block is None:
            continue
        guard: tuple[Check, ...] = ()
        clients, served = 0, False
        try:
            told = ask_served(Path(record.admin_socket))
            clients, served, guard = told.connections, True, guard_of(root, told)
        except FarsideError:
            pass  # `served` stays False
        yield DeviceInfo(
            attached=record,
            block=block,
            swap=find_area(areas, record.device),
            served=served,
            server_clients=clients,
            guard=guard,
        )
