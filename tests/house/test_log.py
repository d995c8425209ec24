"""One event, one line."""

import io
import json
import logging
import logging.handlers
import os
import queue
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest

from farside.log import BEHIND_MAX, get_log, is_journal, start_logging, write_behind


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


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextIO, TextIO]]:
    """A reader and a stream to it that takes no more: whoever writes to it waits."""
    monkeypatch.setattr(logging, "raiseExceptions", False)  # of lines that are left when the reader goes
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 1024)
    os.set_blocking(writer, True)
    with os.fdopen(reader) as read, os.fdopen(writer, "w") as out:
        yield read, out


def drained(read: TextIO, *, until_text: str) -> str:
    """What comes, up to the line with that text."""
    seen = ""
    while until_text not in seen:
        seen += read.readline()
    return seen.lstrip("x")


def test_who_logs_behind_waits_for_no_reader(slow: tuple[TextIO, TextIO]) -> None:
    read, out = slow
    start_logging("info", stream=out)
    write_behind()
    write_behind()

    get_log("blockdev").error("first", cause=OSError("broken"))
    get_log("blockdev").info("second")

    seen = drained(read, until_text="second")
    assert "blockdev: first\nOSError: broken\n" in seen
    assert seen.count("first") == 1


def test_lines_that_find_no_room_are_counted(slow: tuple[TextIO, TextIO]) -> None:
    read, out = slow
    start_logging("info", stream=out)
    write_behind()
    log = get_log("blockdev")

    for _ in range(BEHIND_MAX + 10):
        log.info("much")
    seen = drained(read, until_text="much")
    while "not written" not in seen:
        log.info("more")
        seen += read.readline()

    told = re.search(r"log: (\d+) lines before this one were not written", seen)
    assert told is not None
    assert int(told.group(1)) >= 9
    # All is read: the thread would complain of a closed file in the middle of other tests.
    (behind,) = logging.getLogger("farside").handlers
    assert isinstance(behind, logging.handlers.QueueHandler)
    assert isinstance(behind.queue, queue.Queue)
    while not behind.queue.empty():
        read.readline()
