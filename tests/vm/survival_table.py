"""The tables of survival: rows that tests in guests have left, into the result file and docs/survival.md.

python -m tests.vm.survival_table           # after the tests; `make survival` is both
"""

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import documents
from benchmarks.cited import table_text
from benchmarks.machine import this_commit
from tests.vm.guest.survival import Row

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "build/vm/survival"
DOCUMENT = ROOT / "docs/survival.md"
RESULTS = documents.RESULTS / "survival.json"
# In this order in the document; each is one file of tests, and the name of its rows' file.
PARTS = {
    "test_survival": "## One fault, and two at once",
    "test_survival_copies": "## Where second copies lie otherwise",
    "test_survival_disk": "## Where the disk is slow, or breaks",
    "test_survival_rdma": "## Over soft RDMA, between two machines",
    "test_pressure": "## A whole machine out of memory",
    "test_shutdown": "## Going down",
}
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
    results = json.loads(RESULTS.read_bytes())
    for part, rows in found.items():
        results["figures"][part] = record(rows)
        print(f"{PARTS[part].removeprefix('## ')}\n\n{table_text(_HEAD, results['figures'][part]['rows'])}")
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return documents.main([])


def record(rows: Iterable[Row]) -> dict[str, Any]:
    """A part of the result file."""
    date = datetime.now(UTC).date().isoformat()
    return {"commit": this_commit(), "date": date, "header": _HEAD, "rows": [list(_cells(row)) for row in rows]}


def read_rows(path: Path) -> tuple[Row, ...]:
    """Rows of one file; of a fault that was made more than once, the last."""
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return tuple({row.fault: row for row in rows}.values())


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


if __name__ == "__main__":
    sys.exit(main())
