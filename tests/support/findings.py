"""Findings of docs/trust.md, by the numbers in the docstrings of the tests that show them: [H1], [M10], [L2]."""

import re

import pytest

NUMBER = re.compile(r"\[([HML]\d{1,2})\]")


def findings_of(item: pytest.Item) -> list[str]:
    """Numbers in the docstring of the test, or else of its module."""
    own = NUMBER.findall(getattr(getattr(item, "function", None), "__doc__", None) or "")
    module = NUMBER.findall(getattr(getattr(item, "module", None), "__doc__", None) or "")
    return sorted(set(own or module))
