"""The demo's verdict and its table. PURE."""

from collections.abc import Mapping
from dataclasses import dataclass

from farside.cli.demo.load import Tally
from farside.geometry import PAGE_BYTES
from farside.units import GIB, format_bytes, format_seconds

VERIFIED_MIN_BYTES = 2 * GIB
MUST_HAVE_HAPPENED = ("evictions", "migrations", "failovers", "takeovers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the demo saw: the clients' tally and the borrower's own counters at the end."""

    tally: Tally
    counters: Mapping[str, int]
    pages_in: Mapping[str, int]
    pages_out: Mapping[str, int]
    took_s: float
    complaint: str = ""


def faults(found: Outcome) -> tuple[str, ...]:
    """Everything that keeps the demo from having shown what it is meant to show; empty when all went well."""
    wrong = [f"no {name} happened" for name in MUST_HAVE_HAPPENED if found.counters.get(name, 0) < 1]
    if found.tally.verified_bytes < VERIFIED_MIN_BYTES:
        wrong.append(f"only {format_bytes(found.tally.verified_bytes)} verified, less than 2 GiB")
    if found.tally.error:
        wrong.append(f"a client saw an error or a wrong byte: {found.tally.error}")
    if found.counters.get("lost_pages", 0) or found.counters.get("lost_reads", 0):
        wrong.append("pages were lost")
    if found.complaint:
        wrong.append(found.complaint)
    return tuple(wrong)


def rows(found: Outcome) -> tuple[tuple[str, str, str], ...]:
    """The table's rows: what, how much, and what that means."""
    counters = found.counters
    moved, dropped = (f"{counters.get(name, 0)} pages" for name in ("migrated_pages", "dropped_pages"))
    return (
        *_pages("read from", found.pages_in, _IN),
        *_pages("written to", found.pages_out, _OUT),
        ("migrations", str(counters.get("migrations", 0)), f"{moved} moved, donor to donor"),
        ("evictions", str(counters.get("evictions", 0)), f"{dropped} left to the disk"),
        ("failovers", str(counters.get("failovers", 0)), "donors lost; their pages came from the disk"),
        ("take-overs", str(counters.get("takeovers", 0)), "server processes replaced under load"),
        ("longest request", format_seconds(found.tally.longest_s), "as fio saw it, over all of the above"),
        ("verified", format_bytes(found.tally.verified_bytes), f"{found.tally.rounds} rounds of fio, and nbdcopy"),
        ("wrong bytes", "0" if not found.tally.error else "see below", "every byte compared by fio or cmp"),
        ("took", format_seconds(found.took_s), ""),
    )  # fmt: skip


_IN = {
    "remote": "donors' memory",
    "replica": "second donors",
    "disk": "the backup disk",
    "pending": "pages on their way to the disk",
    "zero": "nowhere: known to be zero",
}
_OUT = {
    "remote": "donors' memory",
    "replica": "second donors",
    "disk": "the backup disk, off the reply path",
    "zero": "nowhere: zero pages are not stored",
}


def _pages(verb: str, pages: Mapping[str, int], names: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [
        (f"{verb} {place}", format_bytes(count * PAGE_BYTES), names.get(place, ""))
        for place, count in pages.items()
        if count
    ]
