"""``make bench-apps``: what is not measured yet, then docs/benchmarks-apps.md from all that is.

A second call goes on where the first stopped: every part is kept as soon as it is measured.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.apps.back_end import set_up
from benchmarks.apps.document import write_document
from benchmarks.apps.measure import cell, now
from benchmarks.apps.plan import CellTask, RetreatTask, Task, UpsetTask, tasks, without_troubled
from benchmarks.apps.result import BackEnd, Cell, Results, Retreat, Upsets, Workload, load, save
from benchmarks.apps.retreat import retreat
from benchmarks.apps.stage import stage
from benchmarks.apps.upset import upsets
from benchmarks.machine import this_command, this_commit, this_machine
from farside.errors import FarsideError, Unavailable
from tests.vm.harness.network import Workshop, workshop
from tests.vm.harness.program import HarnessError

RESULTS = Path(__file__).parent.parent / "results" / "apps.json"
LIMIT_MIN = 40.0
DONOR = 2  # the guest that caches of Table 2.1 run in


def main(arguments: list[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit code."""
    options = _parse(arguments)
    try:
        if not options.render:
            _measure(options)
        if options.output == RESULTS:
            write_document(load(RESULTS), RESULTS)
    except Unavailable as error:
        print(f"benchmarks: no virtual machines: {error}", file=sys.stderr)
        return error.exit_code
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apps", description=__doc__)
    parser.add_argument("--back-ends", default=",".join(BackEnd), help="which of: %(default)s")
    parser.add_argument("--workloads", default=",".join(Workload), help="which of: %(default)s")
    parser.add_argument("--no-events", action="store_true", help="no failures, evictions or retreating donors")
    parser.add_argument("--minutes", type=float, default=LIMIT_MIN, help="begin nothing after so long: %(default)g")
    parser.add_argument("--again", action="store_true", help="try again what was tried in vain")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--output", type=Path, default=RESULTS, help="another file of results, and no document")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the document")
    options = parser.parse_args(arguments)
    try:
        options.back_ends = [BackEnd(name) for name in options.back_ends.split(",") if name]
        options.workloads = [Workload(name) for name in options.workloads.split(",") if name]
    except ValueError as error:
        parser.error(str(error))
    return options


def _measure(options: argparse.Namespace) -> None:
    results = Results() if options.fresh else load(options.output)
    if options.again:
        results = without_troubled(results)
    events = not options.no_events
    waiting = tasks(results, back_ends=options.back_ends, workloads=options.workloads, events=events)
    if not waiting:
        print("everything is measured; --fresh measures it anew")
        return
    end_s = time.monotonic() + options.minutes * 60
    with workshop() as shop:
        results = replace(
            results,
            command=this_command("benchmarks.apps"),
            commit=this_commit(),
            machine=this_machine(),
            accelerator=shop.accelerator.name.lower(),
        )
        for task in waiting:
            if time.monotonic() > end_s:
                print(f"the time is up; the next call goes on with {task}", flush=True)
                return
            for found in _done(shop, task, end_s, results):
                results = _with(results, found)
                save(results, options.output)


def _done(shop: Workshop, task: Task, end_s: float, before: Results) -> Iterator[Cell | Upsets | Retreat]:
    """What the task finds, part by part."""
    match task:
        case CellTask():
            sizes = {cell.workload: cell.working_set_bytes for cell in before.cells.values()}
            yield from _cells(shop, task, end_s, sizes)
        case UpsetTask():
            with stage(shop, ()) as guests:
                yield upsets(guests)
        case RetreatTask(workload=workload, is_lending=is_lending):
            with stage(shop, (workload,), caches_at=DONOR) as guests:
                yield retreat(guests, workload, is_lending=is_lending)


def _with(results: Results, found: Cell | Upsets | Retreat) -> Results:
    match found:
        case Cell():
            _tell(found)
            return replace(results, cells={**results.cells, found.key: found})
        case Upsets():
            print(f"{found.date[11:19]} failures and evictions: {found.trouble or 'measured'}", flush=True)
            return replace(results, upsets=found)
        case Retreat():
            print(f"{found.date[11:19]} {found.key}: {found.trouble or 'measured'}", flush=True)
            return replace(results, retreats={**results.retreats, found.key: found})


def _cells(shop: Workshop, task: CellTask, end_s: float, sizes: dict[Workload, int]) -> Iterator[Cell]:
    waiting = list(task.workloads)
    while waiting and time.monotonic() < end_s:
        with stage(shop, waiting) as guests:
            try:
                pid = set_up(task.back_end, guests.borrower, guests.donor)
            except HarnessError as error:
                # The last line is what the program that failed said last.
                reason = f"not set up: {str(error).strip().splitlines()[-1][-300:]}"
                yield from (Cell(workload=w, back_end=task.back_end, date=now(), trouble=reason) for w in waiting)
                return
            while waiting and time.monotonic() < end_s:
                workload = waiting.pop(0)
                size = sizes.get(workload, 0)
                made = cell(guests, workload, task.back_end, serving_pid=pid, working_set_bytes=size)
                yield made
                if made.trouble:  # these guests may be in any state now
                    break


def _tell(made: Cell) -> None:
    figures = "  ".join(
        f"{level.percent} %: {sorted(w.per_s for w in level.windows)[len(level.windows) // 2]:.1f}/s"
        for level in made.levels
    )
    print(f"{made.date[11:19]} {made.key}: {figures} {made.trouble}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
