"""Last words of a sandbox's child process, for an error message."""

from pathlib import Path

import pytest

from farside.log import last_line


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("farside: the port is taken\n", "farside: the port is taken"),
        (
            "  + Exception Group Traceback (most recent call last):\n    | OSError: too long\n    +-----\n",
            "OSError: too long",
        ),
        ("", ""),
    ],
)
def test_the_last_words_of_a_child_are_an_exception_s_not_the_frame_round_it(
    tmp_path: Path, log: str, line: str
) -> None:
    (tmp_path / "log").write_text(log)

    assert last_line(tmp_path / "log") == line


def test_a_child_that_left_no_log_said_nothing(tmp_path: Path) -> None:
    assert last_line(tmp_path / "log") == ""
