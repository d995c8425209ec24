"""Counts lines of code: `make code-lines`, or python -m tools.code_lines [ROOT].

Python and C of the folders that are the product, without blank lines, comments and docstrings. Tests, benchmarks and
what is generated do not count.
"""

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("agent", "blockdev", "daemon", "kmod_shim", "scheduler", "src/farside")
GENERATED = {"_ffi.c"}
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
# A string or a character first, so that a comment's sign within one is none.
_C_PARTS = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|//[^\n]*|/\*.*?\*/", re.DOTALL)


def main() -> int:
    """Prints a line for each folder, and the sum."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    total = 0
    for folder in FOLDERS:
        lines = sum(count(path) for path in _sources(root / folder))
        total += lines
        print(f"{lines:7,}  {folder}")
    print(f"{total:7,}  all")
    return 0


def count(path: Path) -> int:
    """Lines of code of a Python or C file."""
    text = path.read_text()
    return python_lines(text) if path.suffix == ".py" else c_lines(text)


def python_lines(text: str) -> int:
    """Lines that hold any code; of a string over several lines all, but none of a string that is a statement."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def c_lines(text: str) -> int:
    """Lines that are not blank without comments."""
    bare = _C_PARTS.sub(lambda part: re.sub(r"[^\n]", "", part[0]) if part[0].startswith("/") else part[0], text)
    return sum(bool(line.strip()) for line in bare.splitlines())


def _sources(folder: Path) -> Iterator[Path]:
    # Links are not followed: src/farside has one to each other folder.
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            if path.suffix in (".py", ".c", ".h") and name not in GENERATED and not path.is_symlink():
                yield path


if __name__ == "__main__":
    sys.exit(main())
