"""Record files: what was damaged is told from what is not there."""

from pathlib import Path

import pytest

from farside.agent.messages import Psi
from farside.agent.run.record_file import Damaged, read_record, write_record


@pytest.mark.parametrize("content", [b"{", b"", b"00000000 {}\n", b"zzzzzzzz {}\n"])
def test_a_damaged_record_is_one_line_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "record").write_bytes(content)

    with pytest.raises(Damaged, match=r"record: is damaged \(its checksum is wrong\)") as damaged:
        read_record(tmp_path / "record", Psi)

    assert "remove the file" in (damaged.value.hint or "")


def test_a_record_is_read_as_it_was_written_and_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_record(tmp_path / "record", Psi) is None

    write_record(tmp_path / "record", Psi(cpu_some_pct=1.5))

    assert read_record(tmp_path / "record", Psi) == Psi(cpu_some_pct=1.5)
