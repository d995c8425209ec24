"""Installed Python packages, with all that they need, copied: for the Debian package and the guests of the tests."""

import importlib.metadata
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement


def closure(roots: Sequence[str], left_out: Collection[str]) -> set[str]:
    """The names of ``roots`` and of all that they need here, without those left out and what only these need."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found or name in left_out:
            continue
        found.add(name)
        waiting += [one.name.lower() for one in _requirements(name)]
    return found


def _requirements(name: str) -> Iterator[Requirement]:
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def copy_distribution(name: str, site: Path, *, with_bytecode: bool = False) -> None:
    """Copies an installed package into the folder ``site``; of one in editable mode the metadata only.

    Programs, which lie outside, and what says where and how it was installed here are left out, and what is compiled
    unless ``with_bytecode``.
    """
    suffixes = (".pth",) if with_bytecode else (".pth", ".pyc")
    for file in importlib.metadata.files(name) or ():
        source = Path(str(file.locate()))
        if ".." in file.parts or file.suffix in suffixes or file.name in ("direct_url.json", "RECORD"):
            continue
        if source.is_file():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, site / file)
