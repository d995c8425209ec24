"""Measures one cell: a workload over one back end, at each level of memory."""

from contextlib import closing
from datetime import UTC, datetime

from benchmarks.apps.back_end import throttle
from benchmarks.apps.meter import Meter
from benchmarks.apps.plan import LEVELS_PCT, OPERATIONS, SLOW_DISKS, WINDOWS
from benchmarks.apps.result import BackEnd, Cell, Level, Window, Workload
from benchmarks.apps.stage import Stage, Worker
from benchmarks.load import BenchmarkError
from tests.vm.harness.program import HarnessError

OVERTIME_S = 240.0  # an operation that waits for a slow disk ends long after its window


def cell(stage: Stage, workload: Workload, back_end: BackEnd, *, serving_pid: int, working_set_bytes: int = 0) -> Cell:
    """The cell; with the levels that were measured, and the reason, where it broke off.

    ``working_set_bytes`` is the workload's where another back end's cell has told it: so that all have the same limits.
    """
    levels: list[Level] = []
    date = now()
    trouble = ""
    try:
        with (
            closing(Worker(stage.borrower, workload)) as worker,
            closing(Meter(stage.borrower)) as here,
            closing(Meter(stage.donor, serving_pid)) as there,
        ):
            try:
                for percent in LEVELS_PCT:
                    limit_bytes = working_set_bytes * percent // 100
                    if limit_bytes:
                        throttle(stage.borrower, is_on=back_end in SLOW_DISKS)
                        worker.limit(limit_bytes)
                    count = f"count {OPERATIONS[workload][percent]}"
                    _settling, *windows = [run(worker, here, there, command=count) for _ in range(1 + WINDOWS)]
                    levels.append(Level(percent=percent, limit_bytes=limit_bytes, windows=tuple(windows)))
                    working_set_bytes = working_set_bytes or worker.memory_bytes()
            except BenchmarkError as error:
                raise BenchmarkError(worker.trouble() or str(error)) from error
    except (BenchmarkError, HarnessError) as error:
        trouble = str(error).splitlines()[0]
    return Cell(
        workload=workload,
        back_end=back_end,
        date=date,
        working_set_bytes=working_set_bytes,
        levels=tuple(levels),
        trouble=trouble,
    )


def run(worker: Worker, here: Meter, there: Meter, seconds: float = 0.0, *, command: str = "") -> Window:
    """One window of so many seconds, or of a command, with what both machines counted meanwhile."""
    before, donor_before = here.read(), there.read()
    told = worker.talk.ask_json(command or f"run {seconds * 1e3:.0f}", seconds + OVERTIME_S)
    after, donor_after = here.read(), there.read()
    program_s = None
    if donor_after.program_s is not None and donor_before.program_s is not None:
        program_s = donor_after.program_s - donor_before.program_s
    return Window(
        **told,
        page_ins=after.page_ins - before.page_ins,
        page_outs=after.page_outs - before.page_outs,
        donor_busy_s=donor_after.busy_s - donor_before.busy_s,
        donor_program_s=program_s,
    )


def now() -> str:
    """When a part was measured, for its record."""
    return datetime.now(UTC).isoformat(timespec="seconds")
