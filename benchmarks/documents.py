"""``python -m benchmarks.documents`` (``make figures``): the documents' figures, written from the result files.

Three documents are written whole and two sections of others are, by the functions that the benchmarks use. In all
others marks say where each figure is from (``benchmarks/cited.py``). ``--check`` writes nothing and names the documents
that differ, as ``tests/benchmarks/test_documents.py`` does.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import beside_render, profile_render, render, sim_render
from benchmarks.apps import document as apps_document
from benchmarks.apps import result as apps_result
from benchmarks.apps.figures import apps_figures
from benchmarks.cited import UnknownFigureError, with_figures
from benchmarks.result import load_run
from benchmarks.section import with_section
from benchmarks.sim_result import load as load_simulator

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: list[str] | None = None) -> int:
    """Writes what differs; the exit code: with ``--check`` 1 where anything does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documents", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a document differs")
    options = parser.parse_args(arguments)
    differing = 0
    for path in documents():
        old = path.read_text()
        try:
            new = written(path, old)
        except UnknownFigureError as error:
            print(f"benchmarks: {path.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 2
        if new == old:
            continue
        differing += 1
        print(f"{'differs from the result files' if options.check else 'wrote'}: {path.relative_to(ROOT)}")
        if not options.check:
            path.write_text(new)
    return 1 if options.check and differing else 0


def documents() -> list[Path]:
    """All that may have figures, remarks first: they become parts of others."""
    remarks = [ROOT / "benchmarks/remarks.md", ROOT / "benchmarks/apps/remarks.md"]
    return [*remarks, *sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")})]


def written(path: Path, old: str) -> str:
    """A document as the result files have it."""
    match str(path.relative_to(ROOT)):
        case "docs/benchmarks.md":
            source = RESULTS / "full.json"
            remarks = (ROOT / "benchmarks/remarks.md").read_text()
            return render.render(load_run(source), source=str(source.relative_to(ROOT)), remarks=remarks)
        case "docs/benchmarks-apps.md":
            source = RESULTS / "apps.json"
            return apps_document.text(apps_result.load(source), source)
        case "docs/benchmarks-simulator.md":
            source = RESULTS / "simulator.json"
            return sim_render.render(load_simulator(source), source=str(source.relative_to(ROOT)))
        case "docs/slurm.md":
            old = with_section(old, beside_render.HEAD, beside_render.section(read("beside_slurm")))
        case "docs/profiler.md":
            old = with_section(old, profile_render.HEAD, profile_render.section(read("profile_cost")))
    return with_figures(old, cited)


@cache
def cited(name: str) -> Any:
    """What a mark may name of a result file: its figures, or what is calculated from its samples."""
    if name == "apps":
        return apps_figures(apps_result.load(RESULTS / "apps.json"))
    found = read(name)
    return found.get("figures", found)


@cache
def read(name: str) -> Mapping[str, Any]:
    """A result file, decoded.

    Raises:
        UnknownFigureError: There is no such file.
    """
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise UnknownFigureError(f"there is no benchmarks/results/{name}.json")
    found: Mapping[str, Any] = json.loads(path.read_bytes())
    return found


if __name__ == "__main__":
    sys.exit(main())
