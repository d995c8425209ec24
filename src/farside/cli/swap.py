"""The command `farside swap`: attach a served device as /dev/nbdX and swap, and detach it."""

from pathlib import Path
from typing import Annotated

import typer

from farside.cli import options
from farside.cli.terminal import note

ROOT = Path("/")

swap_app = typer.Typer(
    help="Attach a served device as swap, or as /dev/nbdX only; detach it; show attached devices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AdminSocket = Annotated[Path, typer.Option("--socket", help="Admin socket of the blockdev that serves the device.")]
IfNeeded = Annotated[bool, typer.Option("--if-needed", help="Succeed without doing anything if already done.")]
Device = Annotated[str | None, typer.Argument(metavar="[/dev/nbdX]", help="Device to detach; default: the only one.")]

# Options that overrule a refusal of `attach`.
MayHang = Annotated[
    bool,
    typer.Option(
        "--force-although-the-machine-may-hang", help="Swap to a process that is not protected from memory pressure."
    ),
]
SameDisk = Annotated[
    bool, typer.Option("--force-swap-on-the-same-disk", help="Allow other swap on the disk that holds the backup.")
]
Overwrite = Annotated[bool, typer.Option("--force-overwrite", help="Make swap on a device that holds other data.")]


@swap_app.command("attach")
def attach(
    socket: AdminSocket = Path("/run/farside/blockdev.sock"),
    device: Annotated[str | None, typer.Option(help="Device /dev/nbdX; default: any free one.")] = None,
    block: Annotated[bool, typer.Option("--block", help="Attach a block device only, without swap on it.")] = False,
    priority: Annotated[
        int, typer.Option(min=0, max=32767, help="Priority of the swap; the highest is filled first.")
    ] = 100,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of the swap, such as 64GiB; default: all of the device.")
    ] = None,
    connections: Annotated[int, typer.Option(min=0, max=16, help="Number of connections; 0: one per core.")] = 0,
    nbd_client: Annotated[
        bool, typer.Option("--nbd-client", help="Attach with nbd-client, for kernels without nbd netlink.")
    ] = False,
    keep_sysctl: Annotated[
        bool, typer.Option("--keep-sysctl", help="Do not change this machine's sysctl settings (vm.*).")
    ] = False,
    may_hang: MayHang = False,
    same_disk: SameDisk = False,
    overwrite: Overwrite = False,
    if_needed: IfNeeded = False,
) -> None:
    """Attach a device that `farside blockdev` serves as /dev/nbdX, and swap to it.

    Checks everything first. If a check fails, nothing is changed and the message says what to do.
    """
    from farside.errors import ConfigError
    from farside.kmod_shim.nbd.sysfs import device_index
    from farside.kmod_shim.swap import refusal as rule
    from farside.kmod_shim.swap.attach import attach as do
    from farside.kmod_shim.swap.facts import Wish
    from farside.kmod_shim.swap.refusal import refusal_line
    from farside.units import format_bytes

    size_bytes = _size_of(size)
    if block and size_bytes:
        raise ConfigError("--size is of swap, and --block attaches without it", hint="leave one of them out")
    if if_needed and _is_attached(socket, size_bytes):
        return
    told = {rule.MAY_HANG: may_hang, rule.SAME_DISK: same_disk, rule.OVERWRITE: overwrite}
    wish = Wish(
        admin_socket=socket,
        index=None if device is None else device_index(device),
        is_swap=not block,
        priority=priority,
        size_bytes=size_bytes,
        connections=connections,
        by_nbd_client=nbd_client,
        keep_sysctl=keep_sysctl,
        forced=tuple(name for name, given in told.items() if given),
    )
    result = do(wish, ROOT, note)
    for refusal in result.overruled:
        note(f"WARNING, overruled by {refusal.force}: {refusal_line(refusal)}")
    made = result.attached
    what = "block device" if block else f"swap, priority {made.priority}"
    shown = format_bytes(size_bytes or made.size_bytes)
    print(f"{made.device}: {made.export}, {shown}, {made.connections} connections, {what}")


def _is_attached(socket: Path, size_bytes: int) -> bool:
    """Whether the device is attached already, which is said.

    Raises:
        ConfigError: It is, and its swap has another size than ``size_bytes``; 0: any will do.
    """
    from farside.errors import ConfigError
    from farside.geometry import PAGE_BYTES, granules_of
    from farside.kmod_shim.swap.detach import served_by
    from farside.kmod_shim.swap.table import find_area, read_swaps
    from farside.units import format_bytes

    before = served_by(ROOT, socket)
    if not before:
        return False
    device, export = before[0].device, before[0].export
    area = find_area(read_swaps(ROOT), device)
    # The kernel does not count the page with the area's head.
    has_bytes = 0 if area is None else area.size_bytes + PAGE_BYTES
    if size_bytes and granules_of(has_bytes) != granules_of(size_bytes):
        has = format_bytes(has_bytes) if has_bytes else "none"
        text = f"{device}: {export} is attached, its swap is {has}, and --size is {format_bytes(size_bytes)}"
        raise ConfigError(text, hint=f"farside swap detach {device}, then attach again")
    print(f"{device}: {export} is attached already")
    return True


def _size_of(text: str | None) -> int:
    """The size of the swap that an option names; 0: all of the device."""
    from farside.errors import ConfigError
    from farside.units import parse_bytes

    if text is None:
        return 0
    size_bytes = int(options.value_of("--size", text, parse_bytes))
    if not size_bytes:
        raise ConfigError("--size: 0 is no size of a swap area", hint="leave it out for all of the device")
    return size_bytes


@swap_app.command("detach")
def detach(
    device: Device = None,
    memory_out: Annotated[
        bool,
        typer.Option(
            "--force-although-memory-may-run-out", help="Bring pages back even if they do not fit into memory."
        ),
    ] = False,
    socket: Annotated[
        Path | None, typer.Option(help="Detach the devices of the blockdev with this admin socket.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="Retry for this time while the pages do not fit into memory."),
    ] = 0.0,
    if_needed: IfNeeded = False,
) -> None:
    """Switch swap off, bring every page back, and detach the device.

    There is no time limit. Ctrl-C leaves swap on and changes nothing.
    """
    from farside.kmod_shim.swap.detach import choose, detach_patiently, served_by
    from farside.kmod_shim.swap.record import live_records
    from farside.kmod_shim.swap.refusal import MEMORY_OUT
    from farside.units import format_bytes

    # A socket without a device: the device that this blockdev serves, whichever number it got.
    of_socket = served_by(ROOT, socket) if socket is not None and device is None else ()
    if if_needed and not of_socket and (device is None and (socket is not None or not live_records(ROOT))):
        print("nothing is attached")
        return
    attached = of_socket[0] if of_socket else choose(ROOT, device)
    done = detach_patiently(attached, ROOT, note, wait_s=wait, forced=(MEMORY_OUT,) if memory_out else ())
    print(f"{done.attached.device}: detached, {format_bytes(done.bytes_back)} brought back in {done.seconds:.1f} s")


@swap_app.command("status")
def status(as_json: options.AsJson = False) -> None:
    """Show attached devices; exit code 3 if there are none."""
    import msgspec

    from farside.kmod_shim.swap.status import device_infos

    infos = tuple(device_infos(ROOT))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(infos), indent=2).decode())
    else:
        from farside.cli.swap_show import show

        show(infos)
    raise typer.Exit(0 if infos else 3)


@swap_app.command("watch")
def watch() -> None:
    """Replace broken connections of attached devices, until SIGTERM.

    A restart of the blockdev breaks none; a request that is not answered within 30 s does.
    """
    from farside.kmod_shim.guard import guard_family, guard_memory
    from farside.kmod_shim.nbd.netlink import NbdNetlink
    from farside.kmod_shim.swap.watch import watch as do

    # This process must work while memory is short, as it replaces sockets that swap depends on.
    for failure in (*guard_family("watch"), *guard_memory()):
        note(f"not safe from memory pressure: {failure.what}: {failure.reason}")
    # Two sockets: one hears the kernel's notices only, so that none comes between a request and its answer.
    with NbdNetlink() as listener, NbdNetlink() as netlink:
        for index in do(ROOT, note, listener=listener, netlink=netlink):
            note(f"/dev/nbd{index} has a new socket")
