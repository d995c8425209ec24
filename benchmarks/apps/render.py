"""docs/benchmarks-apps.md from results: pure. What was not measured is said to be so, and why."""

from collections.abc import Iterator, Sequence

from benchmarks.apps import paper
from benchmarks.apps.plan import LEVELS_PCT, RETREATING, WINDOWS
from benchmarks.apps.result import BackEnd, Results, Retreat, Workload, cell_key, retreat_key
from benchmarks.apps.size import DISK_BYTES_PER_S, DISK_IOPS, DONORS, GUEST_MIB, PAGE_CLUSTER, RETREAT_MIB, SLAB_MIB
from benchmarks.apps.summary import (
    Summary,
    above_idle,
    at,
    event_loss_pct,
    loss_pct,
    p99_gain,
    slower,
    summary,
    throughput_gain,
)
from farside.kmod_shim.swap.sysctl import READAHEAD

MISSING = "not measured"
TITLES = {
    Workload.ETC: "Memcached, ETC (5 % SET)",
    Workload.SYS: "Memcached, SYS (25 % SET)",
    Workload.ORDERS: "Order entry over SQLite, in VoltDB's place",
    Workload.PAGERANK: "PageRank, in PowerGraph's place",
}
BACK_ENDS = {
    BackEnd.DISK: "(a) disk",
    BackEnd.NBDKIT: "(b) nbd-client, nbdkit memory",
    BackEnd.AHEAD: "(b) with Farside's readahead",
    BackEnd.NVME: "(c) NVMe over TCP, brd",
    BackEnd.TCP: "(d) Farside by TCP",
    BackEnd.CLEAR: "(d) by TCP, pages not encrypted",
    BackEnd.RXE: "(d) Farside by soft RDMA",
    BackEnd.SLOW: "Farside by TCP, copies on the disk of (a)",
}
PAPERS_NAMES = {BackEnd.DISK: "disk", BackEnd.NBDKIT: "nbdX", BackEnd.TCP: "Infiniswap", BackEnd.RXE: "Infiniswap"}
EVENTS = {
    "evictions": "slabs recalled, a slab",
    "silent": "a donor falls silent, by chance",
    "busiest": "the busiest donor falls silent",
}
_INTRO = f"""# Applications that page

`make bench-apps` measures this in two virtual machines of {GUEST_MIB} MiB, a borrower and a donor, and writes it here;
a second call goes on where the first stopped. Each workload runs in a cgroup of its own, with all the memory it wants,
which is its working set, and then with 75 % and 50 % of that (`memory.max`). Only the swap device differs. The paper's
figures (thesis §2.7.3 and §2.7.4) stand beside ours: they are plots, and what is quoted is what its text says of them.

* (a) is a swap file on a virtio disk that the emulator holds to {DISK_IOPS} requests a second and
  {DISK_BYTES_PER_S // 1_000_000} MB/s: a hard disk.
* (b) is `nbd-client` to a `nbdkit memory` on the donor: a server's CPU serves every page, as in nbdX.
* (c) is the kernel's NVMe over TCP, with a RAM disk (`brd`) behind the donor's `nvmet`.
* (d) is `farside swap attach` with one donor; every slab is leased before the workload starts. Second copies go to the
  borrower's virtio disk, which is not held back there; one more row has it as slow as (a). Pages are encrypted, at
  donors and there, which nobody else's are; one more row has `encrypt_remote = false`.
* (a) to (c) have the kernel's own readahead (`vm.page-cluster` {PAGE_CLUSTER}); `farside swap attach` sets {READAHEAD},
  and one row shows (b) with that too. All have one connection, and no I/O scheduler where the network is.
* The programs' files are locked in memory: what pages is data. Pages are small ones
  (`transparent_hugepage` `never`): what lies in huge ones depends on when the kernel's collector came by.
* Every back end serves the same operations, on the same data and within the same limits: the random choices are the
  same, a window has a fixed number of operations, and the working set is the one that the first back end showed.
* A figure is the median of {WINDOWS} windows, one after another, in one run of the workload.
  All of it takes about an hour: two calls, of which each begins nothing after forty minutes.
"""
_DISTORTION = """## What emulation does to these figures

{machine}

**Compare ratios, not figures.** Without KVM the guests' processors are emulated (TCG), an order of magnitude slower
than the host's: a page by TCP takes milliseconds, where a real network takes tens of microseconds, and most of that is
the emulated CPU of both kernels. The disk is throttled in real time, and so is as much *faster*, measured in
instructions, than the paper's disk was: (a) looks better here than it is, and what remote memory gains over it smaller.

Where Farside stands to (b) and (c) is a matter of the borrower's CPU a request. A process stands there between the
kernel's device and the network, where they stay in the kernel, and the guest has one processor, which has to switch to
it and back, twice a page-in. A switch between address spaces empties the emulator's table of translations. So Farside
is behind where each fault brings a page or two by chance, and level or ahead where it brings many. Each page that is
swapped out goes to a second place as well; (b) and (c) keep one copy, so that all is lost with their server; see
[survival](survival.md) for what that buys.

How fast the host is changes by the minute: the same cell at 100 %, which pages nothing, varied by half in one run, and
one at 50 % by as much again. A row's own "slower" is freer of that than one row's figures over another's.

Soft RDMA (rxe) makes every packet in the kernel of both guests, with a checksum over each: work that a real NIC does
without a processor. It can lose to TCP here, whose segments are large and whose checksums the emulated NIC leaves out.
With a real NIC a READ costs the donor's CPU nothing, its kernel's included; here the donor's process does nothing for
a page, which the tables show, but its kernel does.

Both guests and the emulated network share the host's processors; what else ran on the host is in none of the figures
and may be in their spread.
"""


def document(results: Results, *, source: str, curves: Sequence[str], remarks: str = "") -> str:
    """The whole document; ``curves`` are the plots' paths, as the document links them.

    ``remarks``: what a person measured beside it, dated, which no later run changes.
    """
    parts = [_INTRO, _DISTORTION.format(machine=_machine(results, source)), *([remarks] if remarks else [])]
    parts += [_workload(results, workload) for workload in Workload]
    parts += [_gains(results), _events(results), _retreats(results, curves)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _machine(results: Results, source: str) -> str:
    machine = results.machine
    if machine is None:
        return "Nothing has been measured yet."
    load = f"load {machine.load_before:g} before the newest part"
    return (
        f"Host: {machine.cpu}, {machine.cores} processors, {machine.memory_gib:g} GiB, {machine.system}, "
        f"{machine.kernel}, {load}. Guests: Debian 12's own kernel, one processor each, accelerator "
        f"`{results.accelerator}`. Newest part at commit `{results.commit}`; all figures in `{source}`."
    )


def _workload(results: Results, workload: Workload) -> str:
    head = ["pages to", *[f"{percent} %" for percent in LEVELS_PCT], *_columns()]
    rows = [[BACK_ENDS[back_end], *_row(results, workload, back_end)] for back_end in BackEnd]
    quoted = paper.SLOWER_AT_50[workload]
    places = "; ".join(f"{name}: {q.place}" for name, q in quoted.items() if q)
    return (
        f"## {TITLES[workload]}\n\n{_sizes(results, workload)}\n\n{_table(head, rows)}\n"
        f"Slower: throughput at 100 % over that at 75 and 50 %. The paper's: {places}.\n"
    )


def _columns() -> list[str]:
    return [
        "slower at 75, 50 %",
        "paper at 50 %",
        "p50, p99 at 50 %",
        "page-ins/s at 50 %",
        "donor's CPU at 50 %, above that at 100 %: program, machine",
    ]


def _sizes(results: Results, workload: Workload) -> str:
    cells = [results.cells[key] for b in BackEnd if (key := cell_key(workload, b)) in results.cells]
    sizes = sorted(cell.working_set_bytes >> 20 for cell in cells if cell.working_set_bytes)
    if not sizes:
        return "Not measured."
    unit = {Workload.ORDERS: "transactions", Workload.PAGERANK: "blocks of 65,536 edges (of 80)"}.get(
        workload, "requests, 4 at once,"
    )
    working_set = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    return f"Working set {working_set} MiB; {unit} a second."


def _row(results: Results, workload: Workload, back_end: BackEnd) -> Iterator[str]:
    cell = results.cells.get(cell_key(workload, back_end))
    levels = [at(results, workload, back_end, percent) for percent in LEVELS_PCT]
    trouble = cell.trouble if cell else ""
    for level in levels:
        yield _figure(level.per_s) if level else (f"{MISSING}: {trouble}" if trouble else MISSING)
        trouble = trouble if level else ""
    factors = [slower(cell, percent) if cell else None for percent in LEVELS_PCT[1:]]
    yield ", ".join(_times(factor) for factor in factors)
    yield _papers(workload, back_end)
    yield from _details(levels[-1], levels[0])


def _papers(workload: Workload, back_end: BackEnd) -> str:
    if back_end not in PAPERS_NAMES:
        return "-"
    quoted = paper.SLOWER_AT_50[workload][PAPERS_NAMES[back_end]]
    return f"{quoted.value:g}x" if quoted else "did not complete"


def _details(half: Summary | None, full: Summary | None) -> Iterator[str]:
    if half is None or full is None:
        yield from (MISSING,) * 3
        return
    yield f"{_milliseconds(half.p50_us)}, {_milliseconds(half.p99_us)}"
    yield _figure(half.page_ins_per_s)
    program = above_idle(half, full, lambda level: level.donor_program_s)
    machine = above_idle(half, full, lambda level: level.donor_busy_s)
    a_page = f" ({machine / half.pages * 1e3:.2f} ms a page)" if half.pages and machine is not None else ""
    yield f"{_seconds(program)}, {_seconds(machine)} in {half.seconds:.0f} s{a_page}"


def _gains(results: Results) -> str:
    rows = []
    for workload in Workload:
        for theirs, name in (
            (BackEnd.DISK, "disk"),
            (BackEnd.NBDKIT, "nbdX"),
            (BackEnd.AHEAD, ""),
            (BackEnd.NVME, ""),
        ):
            papers = paper.THROUGHPUT_GAIN.get((workload, name)), paper.P99_GAIN.get((workload, name))
            row = [TITLES[workload], BACK_ENDS[theirs]]
            for ours in (BackEnd.TCP, BackEnd.RXE):
                row += [_times(throughput_gain(results, workload, ours, theirs, p)) for p in LEVELS_PCT[1:]]
            row.append(_times(p99_gain(results, workload, BackEnd.TCP, theirs, 50)))
            rows.append([*row, *("-" if value is None else f"{value:g}x" for value in papers)])
    head = ["workload", "over", "TCP, 75 %", "TCP, 50 %", "soft RDMA, 75 %", "soft RDMA, 50 %", "p99 by TCP, 50 %"]
    return (
        "## Farside over the others\n\nThroughput as a multiple of theirs, and how many times lower the 99th "
        "percentile is; above 1 is better. The paper's are Infiniswap's at 50 % (§2.7.3.1 to §2.7.3.3).\n\n"
        + _table([*head, "paper", "paper, p99"], rows)
    )


def _events(results: Results) -> str:
    found = results.upsets
    rows = []
    for kind, title in EVENTS.items():
        upsets = found.events.get(kind, ()) if found else ()
        loss = event_loss_pct(kind, upsets)
        each = ", ".join(f"{loss_pct(upset):.1f} %" for upset in upsets)
        if kind == "evictions" and upsets:
            each += f" over {sum(upset.recalled_slabs for upset in upsets)} slabs"
        stall = f"{max(w.max_us for u in upsets for w in u.after) / 1e6:.2f} s" if upsets else MISSING
        shown = MISSING if loss is None else f"{loss:.1f} %"
        rows.append([title, shown, each or MISSING, stall, f"{paper.LOSS_PCT[kind]:g} %"])
    trouble = f"\nIt broke off: {found.trouble}\n" if found and found.trouble else ""
    head = ["event", "loss of throughput", "each", "slowest transaction", "paper, Figure 2.16"]
    return (
        f"## Donors that fail or want their memory back\n\nOrder entry at 75 %, its pages with {DONORS} donors by TCP; "
        f"slabs of {SLAB_MIB} MiB. The loss is over 20 s from the event on, against 12 s before it. A silent donor is "
        "a process that is stopped: it answers nothing and closes nothing, as a machine without power, and is given up "
        "after 5 s. Until then a read that is late comes from the disk, which is not held back here, as the paper's "
        "was a real one.\n\n" + _table(head, rows) + trouble
    )


def _retreats(results: Results, curves: Sequence[str]) -> str:
    rows = []
    for workload in RETREATING:
        for is_lending in (False, True):
            found = results.retreats.get(retreat_key(workload, is_lending=is_lending))
            rows.append([workload.upper(), "lends" if is_lending else "does not lend", *_retreat_cells(found)])
            quoted = paper.TABLE_2_1[workload, is_lending]
            rows[-1].append(f"{quoted.per_s / 1e3:g}k/s, {quoted.p50_us:g} us, {quoted.p99_us:g} us")
    head = [
        "mix",
        "machine",
        "SET/s, p99 while it grows",
        "requests/s",
        "p50, p99",
        "slabs recalled",
        "paper, Table 2.1",
    ]
    plots = "".join(f"\n![The donor's memory while Memcached grows]({path})\n" for path in curves)
    return (
        f"## Memcached on a donor\n\nThe donor and the cache share {RETREAT_MIB} MiB (a cgroup, which the donor "
        "reckons with). All but the HeadRoom is lent when the cache begins to grow; then the mix is played.\n\n"
        + _table(head, rows)
        + (plots or "\nFigure 2.17's curve: not measured.\n")
    )


def _retreat_cells(found: Retreat | None) -> Iterator[str]:
    played = summary(found.windows) if found else None
    store = found.store if found else None
    trouble = f": {found.trouble}" if found and found.trouble else ""
    yield f"{_figure(store.per_s)}, {_milliseconds(store.p99_us)}" if store else MISSING + trouble
    yield _figure(played.per_s) if played else MISSING
    yield f"{_milliseconds(played.p50_us)}, {_milliseconds(played.p99_us)}" if played else MISSING
    yield str(found.recalled_slabs) if found and played else MISSING


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _times(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _seconds(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s:.2f} s"


def _milliseconds(value_us: float) -> str:
    return f"{value_us / 1e3:.2f} ms" if value_us < 1e4 else f"{value_us / 1e3:.0f} ms"
