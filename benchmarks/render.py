"""docs/benchmarks.md from a run: pure, text in and out."""

from collections.abc import Callable, Iterable, Sequence

from benchmarks.result import Point, Run, Rw, size_name
from benchmarks.summary import Summaries, Summary, ratio, summarise
from benchmarks.target import FLOOR, FORWARD_PEER, LOCAL_PEERS, OURS_SHM, OURS_TCP, PAGE_BYTES, verdicts

Row = Sequence[str]
MARK = {True: "Reached", False: "Short", None: "Open"}
PAPER_BANDWIDTH = "2 to 4 times nbdX at every block size, 56 Gbps reached at large ones [infiniswap Figure 2.12a]"


def table(header: Row, rows: Iterable[Row]) -> str:
    """A Markdown table, first column left and the others right."""
    body = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in body) for i in range(len(header))]
    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    lines = ["| " + " | ".join(_pad(row, widths)) + " |" for row in body]
    return "\n".join([lines[0], rule, *lines[1:]])


def _pad(row: Row, widths: Sequence[int]) -> list[str]:
    return [cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]


def render(run: Run, *, source: str, remarks: str = "") -> str:
    """The whole document.

    ``source`` is the JSON file's name, for the reader who wants all figures; ``remarks`` is what people have found out
    about the reasons, and stands behind the targets.
    """
    summaries = summarise(run.samples)
    servers = list(dict.fromkeys(sample.server for sample in run.samples))
    points = sorted({sample.point for sample in run.samples})
    pages = [p for p in points if p.block_bytes == PAGE_BYTES]
    parts = [
        _head(run, source),
        "## What was to be reached\n\n" + _targets(run),
        *([f"## Why\n\n{remarks.strip()}"] if remarks.strip() else []),
        "## 4 KiB requests a second (thousands)\n\nMedian, and how far apart the repetitions lay in percent of it.\n\n"
        + _by_point(summaries, servers, pages, lambda s: f"{s.iops.median / 1e3:.1f} ±{s.iops.spread_pct / 2:.0f}"),
        "## Latency, 4 KiB (microseconds, median / 99th percentile)\n\n"
        + _by_point(summaries, servers, pages, lambda s: f"{s.p50_us.median:.1f} / {s.p99_us.median:.1f}"),
        "## Ours over theirs (requests a second; above 1 ours is faster)\n\n" + _ratios(summaries, servers, points),
        "## CPU seconds per million requests (client + server + donor)\n\n"
        "The donor of a TCP device is charged its own processes; a donor on this host does nothing for a request.\n\n"
        + _by_point(summaries, servers, pages, _cpu_cell),
        f"## Bandwidth by block size (GB/s)\n\nOne connection. The paper: {PAPER_BANDWIDTH}.\n\n"
        + _bandwidth(summaries, servers, points),
    ]
    if run.opinions:
        parts.append("## Second opinion: fio's NBD engine\n\n" + _opinions(run))
    if run.timings:
        parts.append("## A slab's life by phase\n\n" + _timings(run))
    if run.skipped:
        parts.append("## Left out\n\n" + "\n".join(f"* {name}: {why}" for name, why in run.skipped.items()))
    return "\n\n".join(parts) + "\n"


def _head(run: Run, source: str) -> str:
    machine = run.machine
    versions = "; ".join(f"{name}: {text}" for name, text in machine.versions.items())
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "Written by `python -m benchmarks` (`make bench`) from its own measurements; not edited by hand.",
            f"All figures with every repetition: `{source}`. How they come about: `benchmarks/README.md`.",
            "",
            f"* Run: {run.date}, commit {run.commit or 'unknown'}, `{run.command}`",
            f"* Machine: {machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}, "
            f"Linux {machine.kernel}; load average before the run {machine.load_before}",
            f"* Each figure: {run.repetitions} repetitions of {run.seconds} s, servers in turn within each repetition, "
            f"a device of {run.device_bytes >> 20} MiB filled with random data; "
            "single reads by TCP, encrypted and clear, in more repetitions, one beside the other",
            f"* {versions}",
        ]
    )


def _targets(run: Run) -> str:
    return "\n".join(
        f"* **{MARK[v.reached]}**: {v.target}.\n  {v.measured[0].upper()}{v.measured[1:]}" for v in verdicts(run)
    )


def _by_point(
    summaries: Summaries, servers: Sequence[str], points: Sequence[Point], cell: Callable[[Summary], str]
) -> str:
    rows = []
    for point in points:
        found = [summaries.get((server, point)) for server in servers]
        rows.append([point.name, *[cell(s) if s else "-" for s in found]])
    return table(["load", *servers], rows)


def _cpu_cell(summary: Summary) -> str:
    cpu = summary.cpu_us_per_request
    return " + ".join(f"{cpu[role]:.1f}" for role in ("client", "server", "donor") if role in cpu)


def _ratios(summaries: Summaries, servers: Sequence[str], points: Sequence[Point]) -> str:
    pairs = [(OURS_SHM, peer) for peer in (*LOCAL_PEERS, "qemu-nbd", FLOOR)] + [(OURS_TCP, FORWARD_PEER)]
    pairs = [(a, b) for a, b in pairs if a in servers and b in servers]
    rows = []
    for point in points:
        found = [ratio(summaries, a, b, point) for a, b in pairs]
        rows.append([point.name, *[f"{r:.2f}" if r is not None else "-" for r in found]])
    return table(["load", *[f"{a} / {b}" for a, b in pairs]], rows)


def _bandwidth(summaries: Summaries, servers: Sequence[str], points: Sequence[Point]) -> str:
    swept = {(p.block_bytes, p.rw): p for p in points if p.connections == 1 and p.depth > 1}
    rows = []
    for rw in Rw:
        for size in sorted({size for size, _ in swept}):
            point = swept.get((size, rw))
            if point is None:
                continue
            cells = [s.bytes_per_s.median if (s := summaries.get((server, point))) else 0.0 for server in servers]
            label = f"{rw} {size_name(size)} d{point.depth}"
            rows.append([label, *[f"{cell / 1e9:.2f}" if cell else "-" for cell in cells]])
    return table(["load", *servers], rows)


def _opinions(run: Run) -> str:
    rows = [(o.server, o.point.name, f"{o.iops / 1e3:.1f}", f"{o.p50_us:.1f}", f"{o.p99_us:.1f}") for o in run.opinions]
    return table(("server", "load", "thousand/s", "p50 us", "p99 us"), rows)


def _timings(run: Run) -> str:
    rows = [
        (
            t.phase,
            f"{t.median_us:.0f}",
            f"{t.least_us:.0f} to {t.most_us:.0f}",
            str(t.repetitions),
            f"{t.paper_us:.0f}" if t.paper_us is not None else "-",
            t.note,
        )
        for t in run.timings
    ]
    return table(("phase", "median us", "span us", "times", "paper us", ""), rows)
