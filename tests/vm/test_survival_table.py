"""The table of survival: from what guests leave to the document."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.vm.guest.survival import Row
from tests.vm.survival_table import DOCUMENT, PARTS, read_rows, replaced, table

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
    assert table([ROW]).splitlines()[2] == "| donor killed | disk | tcp | 6,264 | 0 | 0 | 0 | 0 | 0.34 s |"


def test_a_row_says_how_many_writes_a_broken_disk_refused() -> None:
    row = replace(ROW, refused_writes=1090)

    assert table([row]).splitlines()[2].startswith("| donor killed (1,090 writes refused) | disk |")


def test_of_a_fault_that_was_made_twice_the_last_row_counts(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(asdict(ROW) | {"page_ins": count}) + "\n" for count in (1, 2)))

    (row,) = read_rows(rows)

    assert row.page_ins == 2


def test_a_table_takes_the_place_of_the_one_before_and_nothing_else() -> None:
    text = "a\n<!-- p: begin -->\nold\n<!-- p: end -->\nb\n"

    once = replaced(text, "p", "new\n")

    assert once == "a\n<!-- p: begin -->\nnew\n<!-- p: end -->\nb\n"
    assert replaced(once, "p", "old\n") == text
    with pytest.raises(ValueError, match="no place for q"):
        replaced(text, "q", "new\n")


@pytest.mark.parametrize("part", PARTS)
def test_the_document_has_a_place_for_each_part(part: str) -> None:
    assert "new" in replaced(DOCUMENT.read_text(), part, "new\n")
