"""The table of survival: rows that tests in guests have left, written into docs/survival.md and on standard output.

python -m tests.vm.survival_table           # after the tests; `make survival` is both
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.vm.guest.survival import Row

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "build/vm/survival"
DOCUMENT = ROOT / "docs/survival.md"
# In this order in the document; each is one file of tests, and the name of its rows' file.
PARTS = {
    "test_survival": "## One fault, and two at once",
    "test_survival_copies": "## Where second copies lie otherwise",
    "test_survival_disk": "## Where the disk is slow, or breaks",
    "test_survival_rdma": "## Over soft RDMA, between two machines",
    "test_pressure": "## A whole machine out of memory",
    "test_shutdown": "## Going down",
}
_BEGIN, _END = "<!-- {part}: begin -->\n", "<!-- {part}: end -->\n"
_HEAD = (
    "fault", "second copy", "by", "swapped in", "wrong pages", "failed reads", "lost pages", "lost processes",
    "longest stall",
)  # fmt: skip


def main() -> int:
    """0, or 1 where there is nothing to write."""
    found = {part: read_rows(ROWS / f"{part}.jsonl") for part in PARTS if (ROWS / f"{part}.jsonl").exists()}
    if not found:
        print(f"no rows in {ROWS}: `make survival` runs the tests that leave them", file=sys.stderr)
        return 1
    text = DOCUMENT.read_text()
    for part, rows in found.items():
        text = replaced(text, part, table(rows))
        print(f"{PARTS[part].removeprefix('## ')}\n\n{table(rows)}")
    DOCUMENT.write_text(text)
    return 0


def read_rows(path: Path) -> tuple[Row, ...]:
    """Rows of one file; of a fault that was made more than once, the last."""
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return tuple({row.fault: row for row in rows}.values())


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    return "".join((_line(_HEAD), _line("-" * len(name) for name in _HEAD), *(_line(_cells(row)) for row in rows)))


def replaced(text: str, part: str, new: str) -> str:
    """The document with that part's table in the place of the one before."""
    begin, end = _BEGIN.format(part=part), _END.format(part=part)
    head, _, rest = text.partition(begin)
    old, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"docs/survival.md has no place for {part} ({begin.strip()}); it had {old[:40]!r}")
    return f"{head}{begin}{new}{end}{tail}"


def _cells(row: Row) -> Iterable[str]:
    counts = (row.page_ins, row.wrong_pages, row.failed_reads, row.lost_pages, row.lost_processes)
    refused = f" ({row.refused_writes:,} writes refused)" if row.refused_writes else ""
    return (
        row.fault + refused,
        row.second_copy,
        row.transport,
        *(f"{count:,}" for count in counts),
        f"{row.stall_s:.2f} s",
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main())
