"""Output of `farside swap status`."""

from collections.abc import Sequence

from farside.kmod_shim.preflight import Outcome
from farside.kmod_shim.swap.status import DeviceInfo
from farside.units import format_bytes


def show(infos: Sequence[DeviceInfo]) -> None:
    """Prints each device in a few lines."""
    if not infos:
        print("nothing is attached; `farside swap attach` does it")
    for info in infos:
        attached, swap = info.attached, info.swap
        print(f"{attached.device}  {attached.export}, {format_bytes(info.block.size_bytes)}")
        if swap is not None:
            print(f"  swap      {format_bytes(swap.used_bytes)} out, priority {swap.priority}")
        elif attached.is_swap:
            print("  swap      OFF, though it was attached for it: `swapon`, or `farside swap detach`")
        else:
            print("  swap      none, attached with --block")
        queue = f"scheduler {info.block.scheduler}, queue depth {info.block.queue_depth}"
        print(f"  kernel    {attached.connections} connections, {queue}")
        if not info.served:
            print(f"  server    nobody answers at {attached.admin_socket}; pages may be served all the same")
            continue
        few = info.server_clients < attached.connections
        print(f"  server    {info.server_clients} connections{', fewer than the kernel wants' if few else ''}")
        if swap is not None:
            for check in info.guard:
                if check.outcome is not Outcome.OK:
                    print(f"  NOT SAFE  {check.name}: {check.found}")
                    print(f"            -> {check.advice}")
            if info.is_guarded:
                print("  guard     safe from memory pressure")
