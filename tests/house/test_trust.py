"""docs/trust.md says of each finding what is true: what is closed has tests that carry its number."""

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.findings import NUMBER
from tools.attack import table

ROOT = Path(__file__).parents[2]
ALL = [*(f"H{n}" for n in range(1, 4)), *(f"M{n}" for n in range(1, 12)), *(f"L{n}" for n in range(1, 12))]
_ROW = re.compile(r"^\| ([HML]\d+) \| (.+?) \| (closed|partly|stays)\b(.*?) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[str, str]]:
    """By finding, its state, and what is said of it."""
    found = _ROW.findall((ROOT / "docs/trust.md").read_text())
    assert len({number for number, *_ in found}) == len(found), "a finding has two rows"
    return {number: (state, said) for number, _, state, said in found}


@cache
def shown() -> set[str]:
    """Numbers in the docstrings of tests and of their modules."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path == Path(__file__):
            continue
        tree = ast.parse(path.read_text())
        tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        for text in (ast.get_docstring(tree), *map(ast.get_docstring, tests)):
            found.update(NUMBER.findall(text or ""))
    return found


def test_each_finding_has_its_row_in_order() -> None:
    assert list(rows()) == ALL


@pytest.mark.parametrize("number", ALL)
def test_what_is_closed_is_shown_by_a_test_and_what_stays_has_its_reason(number: str) -> None:
    state, said = rows()[number]

    if state == "stays":
        assert len(said) > 40, "why it stays"
    else:
        assert number in shown(), "no test has this number in its docstring"


def test_the_table_of_attacks_names_what_needs_a_guest() -> None:
    lines = table((ROOT / "docs/trust.md").read_text(), {})

    named = [line[:4].strip() for line, after in pairwise(lines) if "make test-vm" in after]

    assert named == ["H1", "M2", "M3"]


def test_no_test_carries_a_number_that_the_document_does_not_have() -> None:
    assert shown() <= set(ALL)
