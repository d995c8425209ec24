"""The tables of survival: from what guests leave to the result file."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.vm.guest.survival import Row
from tests.vm.survival_table import DOCUMENT, PARTS, RESULTS, read_rows, record

ROW = Row(
    fault="donor killed",
    second_copy="disk",
    transport="tcp",
    accesses=6179,
    page_ins=6264,
    wrong_pages=0,
    failed_reads=0,
    lost_pages=0,
    lost_processes=0,
    stall_s=0.345,
)


def test_a_row_is_a_line_of_the_table() -> None:
    assert record([ROW])["rows"] == [["donor killed", "disk", "tcp", "6,264", "0", "0", "0", "0", "0.34 s"]]


def test_a_row_says_how_many_writes_a_broken_disk_refused() -> None:
    (cells,) = record([replace(ROW, refused_writes=1090)])["rows"]

    assert cells[0] == "donor killed (1,090 writes refused)"


def test_of_a_fault_that_was_made_twice_the_last_row_counts(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(asdict(ROW) | {"page_ins": count}) + "\n" for count in (1, 2)))

    (row,) = read_rows(rows)

    assert row.page_ins == 2


@pytest.mark.parametrize("part", PARTS)
def test_the_document_has_a_place_for_each_part(part: str) -> None:
    assert f"<!--table survival:{part}-->" in DOCUMENT.read_text()
    assert part in json.loads(RESULTS.read_bytes())["figures"]
