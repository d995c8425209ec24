"""The result file: the figures of each part, with the command, commit and machine that it was measured by."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from benchmarks.machine import this_command, this_commit, this_machine

RESULTS = Path(__file__).parents[1] / "results" / "aggregation.json"


@dataclass(slots=True)
class Record:
    """What one call has measured, by part."""

    figures: dict[str, Figure] = field(default_factory=dict)

    def add(self, part: str, figure: Figure) -> None:
        self.figures[part] = figure


def keep(record: Record, output: Path, failures: Mapping[str, str], *, module: str = "benchmarks.aggregation") -> None:
    """Writes the file; parts that were not measured stay as they are."""
    known: dict[str, Any] = json.loads(output.read_bytes()) if output.exists() else {"figures": {}}
    machine = asdict(this_machine())
    for part, figure in record.figures.items():
        known["figures"][part] = {
            "command": this_command(module), "commit": this_commit(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine, "left_out": dict(failures),
            **asdict(figure),
        }  # fmt: skip
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(known, indent=1) + "\n")
    print(f"wrote {output}")
