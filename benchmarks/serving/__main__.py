"""``python -m benchmarks.serving PART...``: serving measured live here; ends with 1 where a bar is missed."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure, as_text
from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.serving.bars import missed
from benchmarks.serving.cost import measure_cost
from benchmarks.serving.fidelity import measure_fidelity
from benchmarks.serving.gain import measure_gain
from benchmarks.serving.on_gpu import measure_green, measure_mps
from benchmarks.serving.overload import measure_overload
from benchmarks.serving.peers import measure_peers
from benchmarks.serving.prepare import measure_prepare
from benchmarks.serving.promise import measure_promise
from benchmarks.serving.shares import measure_shares
from benchmarks.serving.steps import measure_steps
from farside.errors import FarsideError
from farside.serve.packages import GRPC_DOOR, OF_DRIVER, OF_FRAMEWORK, SAMPLE_MODELS, check_packages

RESULTS = Path(__file__).parents[1] / "results"
# Of parts that are measured on other machines than the rest, which may lack what these need.
GPU_PARTS = frozenset({"green", "mps"})
# Parts that ask no front.
_WITHOUT_FRONT = frozenset({"shares", "prepare"})
PARTS: dict[str, Callable[..., Figure]] = {
    "shares": measure_shares,
    "cost": measure_cost,
    "promise": measure_promise,
    "overload": measure_overload,
    "steps": measure_steps,
    "fidelity": measure_fidelity,
    "gain": measure_gain,
    "peers": measure_peers,
    "prepare": measure_prepare,
    "green": measure_green,
    "mps": measure_mps,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="shorter windows; keeps nothing")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"default: {RESULTS}/serving.json or serving_gpu.json"
    )
    options = parser.parse_args(arguments)
    short: list[str] = []
    try:
        check_packages({package for name in options.parts for package in packages_of(name)})
    except FarsideError as error:
        print(error, file=sys.stderr)
        return 1
    for name in options.parts:
        try:
            figure = PARTS[name](quick=options.quick)
        except FarsideError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        print(as_text(figure), end="\n\n", flush=True)
        short += [f"{name}: {line}" for line in missed(figure)]
        if not options.quick:
            kept = RESULTS / ("serving_gpu.json" if name in GPU_PARTS else "serving.json")
            _keep(name, figure, options.output or kept)
    print("\n".join(["missed:", *short]) if short else "all bars are met")
    return 1 if short else 0


def packages_of(part: str) -> set[str]:
    """What a part imports, here and in the programs that it starts."""
    framework = (*OF_FRAMEWORK["pytorch"], *OF_DRIVER.get(part, ())) if part in GPU_PARTS else SAMPLE_MODELS
    return {*framework, *(() if part in _WITHOUT_FRONT else GRPC_DOOR)}


def _keep(part: str, figure: Figure, output: Path) -> None:
    """Writes the file; parts that were not measured stay as they are."""
    known: dict[str, Any] = json.loads(output.read_bytes()) if output.exists() else {"figures": {}}
    known["figures"][part] = {
        "command": this_command("benchmarks.serving"), "commit": this_commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": asdict(this_machine()), **asdict(figure),
    }  # fmt: skip
    output.write_text(json.dumps(known, indent=1) + "\n")
    print(f"wrote {output}")


if __name__ == "__main__":
    sys.exit(main())
