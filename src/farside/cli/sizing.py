"""The command `farside sizing`: how much to lend and to borrow, and its cost by the paper's model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farside.cli import options
from farside.errors import ConfigError
from farside.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from farside.cli.sizing_model import Benefit, BorrowerSize, CostModel, DonorSize


def _bytes(text: str) -> Any:
    return typer.Option(parser=options.byte_count, metavar="BYTES", help=text)


def _number(text: str, *, low: float = 0.0, high: float = 1e6) -> Any:
    def read(given: object) -> float:
        return options.number_within(str(given), low, high)

    return typer.Option(parser=read, metavar=f"{low:g}..{high:g}", help=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Options that say what donors and borrower are like."""

    memory: Annotated[int, _bytes("Memory of a donor; 0: that of this machine.")] = 0
    used: Annotated[int, _bytes("Peak memory use of the donor's own programs; 0: their use now.")] = 0
    headroom: Annotated[int, _bytes("Setting headroom_bytes of the donor; 0: 1/8 of its memory.")] = 0
    slab: Annotated[int, _bytes("Setting slab_bytes.")] = 64 * MIB
    size: Annotated[int, _bytes("Size of the swap device.")] = 16 * GIB
    replicas: Annotated[
        int, typer.Option(min=1, max=2, help="Copies at donors; 2: a second donor instead of the backup disk.")
    ] = 1
    disk: Annotated[bool, typer.Option("--disk", help="With --replicas 2, use a backup disk too.")] = False
    page_outs: Annotated[float, _number("Peak number of pages swapped out per second.", high=1e9)] = 5000.0
    workers: Annotated[int, typer.Option(min=1, max=16, help="Setting workers of the device.")] = 4
    pending: Annotated[int, _bytes("Setting pending_bytes of the device.")] = 64 * MIB


@options.made(wanted=Wanted)
def sizing(
    wanted: Wanted,
    price: Annotated[
        float, _number("Earnings of one GiB of memory in dollars per month; 0: do not show earnings.")
    ] = 0.0,
    discount: Annotated[float, _number("Discount on lent memory, as for preemptible machines.", high=1.0)] = 0.0,
    opex: Annotated[float, _number("Data center cost of one watt in dollars per month.")] = 0.04,
    electricity: Annotated[float, _number("Price of electricity in dollars per kWh.")] = 0.067,
    nic_watts: Annotated[float, _number("Power of an RDMA adapter in watts.")] = 8.41,
    switch_watts: Annotated[float, _number("Power of a switch in watts.")] = 231.0,
    switch_ports: Annotated[int, typer.Option(min=1, max=65536, help="Number of ports of a switch.")] = 36,
    pue: Annotated[float, _number("Power usage effectiveness (PUE) of the data center.", low=1.0, high=100.0)] = 1.1,
    as_json: options.AsJson = False,
) -> None:
    """Compute the sizes of donors and a borrower, and the cost and earnings of lending.

    Memory and its use default to those of this machine. Cost model and power defaults are Infiniswap's; memory has no
    default price.
    """
    from farside.cli.sizing_model import CostModel, benefit, borrower_size

    _hold_to_settings(wanted)
    donor = _donor(wanted)
    borrower = borrower_size(
        size_bytes=wanted.size,
        replicas=wanted.replicas,
        has_disk=wanted.disk or wanted.replicas == 1,
        pages_out_per_s=wanted.page_outs,
        donor=donor,
        workers=wanted.workers,
        pending_bytes=wanted.pending,
    )
    model = CostModel(
        opex_per_watt_month=opex,
        electricity_per_kwh=electricity,
        nic_watts=nic_watts,
        switch_watts=switch_watts,
        switch_ports=switch_ports,
        power_usage_effectiveness=pue,
    )
    share = donor.lent_bytes / donor.memory_bytes
    worth = benefit(
        model, memory_bytes=donor.memory_bytes, lent_share=share, price_per_gib_month=price, discount=discount
    )
    if as_json:
        import msgspec

        told = {"donor": donor, "borrower": borrower, "model": model, "watts": model.watts, "benefit": worth}
        print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    else:
        _print(donor, borrower, model, worth)


def _donor(wanted: Wanted) -> "DonorSize":
    """What a donor lends; 0 for memory or its use: this machine's."""
    from farside.cli.sizing_model import donor_size

    total, now_used = _machine() if not (wanted.memory and wanted.used) else (wanted.memory, wanted.used)
    donor = donor_size(
        memory_bytes=wanted.memory or total,
        used_bytes=wanted.used or now_used,
        slab_bytes=wanted.slab,
        headroom_bytes=wanted.headroom,
    )
    if donor.used_bytes > donor.memory_bytes:
        raise ConfigError(
            f"--used {format_bytes(donor.used_bytes)} is more than --memory {format_bytes(donor.memory_bytes)}",
            hint="name both",
        )
    return donor


def _hold_to_settings(wanted: Wanted) -> None:
    """Raises ConfigError for what no donor and no borrower could be set to."""
    from farside.config import BlockdevConfig, DaemonConfig
    from farside.config.check import blockdev_problems
    from farside.config.convert import convert
    from farside.config.settings import settings_of

    lent, borrowed = settings_of(DaemonConfig), settings_of(BlockdevConfig)
    total = lent["memory_total_bytes"]
    options = {"size_bytes": "--size", "slab_bytes": "--slab", "pending_bytes": "--pending"}
    for option, setting, value in (
        ("--memory", total, wanted.memory),
        ("--used", total, wanted.used),
        ("--headroom", lent["headroom_bytes"], wanted.headroom),
        (options["size_bytes"], borrowed["size_bytes"], wanted.size),
        (options["slab_bytes"], borrowed["slab_bytes"], wanted.slab),
        (options["pending_bytes"], borrowed["pending_bytes"], wanted.pending),
    ):
        try:
            convert(setting, value)
        except ValueError as error:
            raise ConfigError(f"{option}: {error}") from error
    protection = "replica" if wanted.replicas > 1 else "disk"
    device = BlockdevConfig(
        size_bytes=wanted.size, slab_bytes=wanted.slab, pending_bytes=wanted.pending, protection=protection
    )
    for name, text in blockdev_problems(device):
        if name in options:
            raise ConfigError(f"{options[name]}: {text}")


def _machine() -> tuple[int, int]:
    from farside.kmod_shim.preflight import read_meminfo

    memory = read_meminfo(Path("/"))
    total = memory.get("MemTotal", 0)
    if not total:
        raise ConfigError("this machine's memory can't be read", hint="name --memory and --used")
    return total, total - memory.get("MemAvailable", 0)


def _print(donor: "DonorSize", borrower: "BorrowerSize", model: "CostModel", worth: "Benefit") -> None:
    print(f"A donor with {format_bytes(donor.memory_bytes)}, {format_bytes(donor.used_bytes)} of it used:")
    print(f"  HeadRoom {format_bytes(donor.headroom_bytes)}, never lent")
    print(
        f"  lends {donor.slabs} slabs, {format_bytes(donor.lent_bytes)} ({donor.lent_bytes / donor.memory_bytes:.0%})"
    )
    print(f"A device of {format_bytes(borrower.size_bytes)}:")
    if borrower.donors:
        print(f"  {borrower.donors} such donors, one of which may die: {format_bytes(borrower.remote_bytes)} in all")
    else:
        print("  no such donor lends anything: every page goes to the disk")
    if borrower.disk_bytes:
        rate = f"{format_bytes(int(borrower.disk_write_bytes_per_s))}/s of writes"
        print(f"  backup disk {format_bytes(borrower.disk_bytes)}, which must bear {rate}")
    else:
        print("  no backup disk: each page lies in two donors")
    print(f"  {format_bytes(borrower.locked_bytes)} of the borrower's memory, locked")
    print("A machine's month, by the cost model of Infiniswap §2.7.6:")
    print(f"  {model.watts:.2f} W of network: ${worth.cost:.2f}")
    if worth.earned:
        print(f"  lent memory earns ${worth.earned:.2f}: {worth.growth:+.1%} on what the rest of its memory earns")
