"""The pretended machine of a donor: what its proc folder says."""

import os
from pathlib import Path

from farside.memory_sense import MemorySense
from farside.sandbox import pressure

MIB = 1 << 20


def sensed(state: Path, *, pid: int = 0) -> tuple[int, int, float | None]:
    """What a donor's own reader makes of the folder: total, available, stall share."""
    pressure.refresh(state, "d1", total_bytes=512 * MIB, pid=pid)
    reading = MemorySense(proc_root=pressure.proc_folder(state, "d1")).read()
    return reading.total_bytes, reading.available_bytes, reading.psi_full_pct


def test_an_unsqueezed_machine_has_all_of_its_memory_available(tmp_path: Path) -> None:
    assert sensed(tmp_path) == (512 * MIB, 512 * MIB, 0.0)


def test_what_programs_use_is_not_available(tmp_path: Path) -> None:
    pressure.donor_folder(tmp_path, "d1").mkdir(parents=True)

    pressure.squeeze(tmp_path, "d1", 200 * MIB)

    assert sensed(tmp_path) == (512 * MIB, 312 * MIB, 0.0)


def test_what_the_donor_lends_is_not_available_either(tmp_path: Path) -> None:
    before = sensed(tmp_path, pid=os.getpid())[1]
    fd = os.memfd_create("slab")
    os.posix_fallocate(fd, 0, 16 * MIB)

    assert before - sensed(tmp_path, pid=os.getpid())[1] == 16 * MIB

    os.close(fd)


def test_what_jobs_use_is_not_available_either(tmp_path: Path) -> None:
    pressure.refresh(tmp_path, "d1", total_bytes=512 * MIB, pid=0, jobs_bytes=112 * MIB)

    assert MemorySense(proc_root=pressure.proc_folder(tmp_path, "d1")).read().available_bytes == 400 * MIB


def test_programs_that_want_more_than_there_is_stall(tmp_path: Path) -> None:
    pressure.donor_folder(tmp_path, "d1").mkdir(parents=True)

    pressure.squeeze(tmp_path, "d1", 513 * MIB)

    assert sensed(tmp_path) == (512 * MIB, 0, 50.0)


def test_a_process_that_is_gone_lends_nothing() -> None:
    assert pressure.lent_bytes(2**30) == 0
