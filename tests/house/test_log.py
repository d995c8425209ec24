"""One event, one line."""

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.log import ROOT, get_log, is_journal, start_logging


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger(ROOT)
    handlers, level, propagate = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)


def test_a_line_is_time_level_component_message_and_fields() -> None:
    out = io.StringIO()
    start_logging("info", stream=out)

    get_log("daemon").info("slab lent", lease=7, borrower="node 3", share=0.25)

    line = out.getvalue()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT[\d:.]+Z info    daemon: slab lent lease=7 borrower=\"node 3\" share=0.25\n", line
    )


def test_what_is_less_important_than_the_level_is_not_written() -> None:
    out = io.StringIO()
    start_logging("warning", stream=out)

    get_log("daemon").info("nothing much")

    assert out.getvalue() == ""


def test_a_peers_text_can_not_forge_a_line() -> None:
    out = io.StringIO()
    start_logging("info", stream=out)

    get_log("daemon").warning("bad\nhello", node="x\n2026 info daemon: all is well")

    assert out.getvalue().count("\n") == 1


def test_json_lines_hold_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARSIDE_LOG", "json")
    out = io.StringIO()
    start_logging("info", stream=out)

    get_log("blockdev").error("disk", cause=OSError("broken"), path=Path("/d"))

    told = json.loads(out.getvalue())
    assert (told["component"], told["level"], told["message"], told["path"]) == ("blockdev", "error", "disk", "/d")
    assert "OSError: broken" in told["traceback"]


def test_the_journal_gets_priorities_instead_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("w+") as out:
        status = os.fstat(out.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        start_logging("info", stream=out)

        get_log("daemon").warning("squeezed")

        out.seek(0)
        assert out.read() == "<4>daemon: squeezed\n"


def test_another_streams_name_is_not_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as out:
        assert not is_journal(out, "1:2")
    assert not is_journal(io.StringIO(), "1:2")
