"""A section of a document under docs/ that a benchmark writes, and the figures that it is written from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def with_section(document: str, head: str, text: str) -> str:
    """The document with this section, which begins with ``head`` (`## ...`), made anew.

    Raises:
        ValueError: It has no such section.
    """
    before, found, rest = document.partition(head)
    if not found:
        raise ValueError(f"there is no '{head.strip()}'")
    _, next_head, after = rest.partition("\n## ")
    return before + text + next_head + after


def keep(told: Mapping[str, Any], output: Path, *, text: str, head: str, results: Path, document: Path) -> None:
    """Writes the figures, prints their section and, where they are those that the project keeps, writes that too."""
    output.write_text(json.dumps(told, indent=1) + "\n")
    print(text)
    print(f"wrote {output}")
    if output == results:
        document.write_text(with_section(document.read_text(), head, text))
        print(f"wrote {document}")
