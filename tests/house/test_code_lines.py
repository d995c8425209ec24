"""What `make code-lines` counts."""

from pathlib import Path

import pytest

from tools import code_lines
from tools.code_lines import c_lines, python_lines

PYTHON = '''"""What it is.

In several lines.
"""

import os  # for a reason

# a comment
LIMIT = 3
"""What it limits."""


def name() -> str:
    """What it returns."""

    return """two
lines"""
'''
C = """/* What it is.
 * In several lines. */
#include <stdio.h>

static const char *sign = "/* no comment */"; // but this is one
/* a */ int a; /* begins here
ends here */ int b;
"""


def test_docstrings_comments_and_blank_lines_of_python_do_not_count() -> None:
    assert python_lines(PYTHON) == len(["import", "LIMIT", "def", "return", 'lines"""'])


def test_comments_and_blank_lines_of_c_do_not_count() -> None:
    assert c_lines(C) == len(["#include", "static", "int a", "int b"])


def test_each_folder_has_its_line_and_the_last_is_their_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in code_lines.FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text(PYTHON)
    (tmp_path / "kmod_shim/b.c").write_text(C)
    (tmp_path / "kmod_shim/_ffi.c").write_text(C)
    (tmp_path / "src/farside/agent").symlink_to(tmp_path / "agent")
    monkeypatch.setattr("sys.argv", ["code_lines", str(tmp_path)])

    code_lines.main()

    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(lines) for lines, _ in told] == [5, 5, 5, 9, 5, 5, 34]
    assert [name for _, name in told] == [*code_lines.FOLDERS, "all"]
