"""Reading memory use from a /proc of our own."""

from pathlib import Path

import pytest

from farside.errors import Unavailable
from farside.memory_sense import MemoryReading, MemorySense

MEMINFO = """MemTotal:       65536 kB
MemFree:          100 kB
MemAvailable:   32768 kB
HugePages_Total:    10
HugePages_Free:      8
HugePages_Rsvd:      3
Hugepagesize:     2048 kB
"""
PRESSURE = (
    "some avg10=12.00 avg60=0.00 avg300=0.00 total=1\n"
    "full avg10=3.25 avg60=0.00 avg300=0.00 total=1\n"
)  # fmt: skip


def proc(folder: Path, meminfo: str = MEMINFO, pressure: str | None = PRESSURE) -> Path:
    (folder / "meminfo").write_text(meminfo)
    if pressure is not None:
        (folder / "pressure").mkdir()
        (folder / "pressure" / "memory").write_text(pressure)
    return folder


def test_memory_and_pressure_are_read(tmp_path: Path) -> None:
    reading = MemorySense(proc_root=proc(tmp_path)).read()

    assert reading == MemoryReading(
        total_bytes=64 << 20,
        available_bytes=32 << 20,
        psi_full_pct=3.25,
        huge_page_bytes=2 << 20,
        huge_pages_free=5,
    )


def test_a_kernel_without_psi_or_huge_pages_is_fine(tmp_path: Path) -> None:
    folder = proc(tmp_path, "MemTotal: 10 kB\nMemAvailable: 5 kB\n", None)

    reading = MemorySense(proc_root=folder).read()

    assert (reading.psi_full_pct, reading.huge_page_bytes, reading.huge_pages_free) == (None, 0, 0)


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 10 kB\n", "MemTotal: many kB\nMemAvailable: 1 kB\n", "MemTotal:\n"])
def test_a_meminfo_that_is_none_is_said_so(tmp_path: Path, meminfo: str) -> None:
    with pytest.raises(Unavailable, match="meminfo"):
        MemorySense(proc_root=proc(tmp_path, meminfo)).read()


def test_a_cgroups_limit_and_use_count_in_the_machines_place(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.max").write_text(f"{20 << 20}\n")
    (group / "memory.current").write_text(f"{8 << 20}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {3 << 20}\n")
    (group / "memory.pressure").write_text(PRESSURE.replace("3.25", "9.00"))

    reading = MemorySense(proc_root=proc(tmp_path), cgroup=str(group)).read()

    assert (reading.total_bytes, reading.available_bytes) == (20 << 20, 15 << 20)
    assert reading.psi_full_pct == 9.0


def test_a_cgroup_without_limit_has_the_machines(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text(f"{60 << 20}\n")
    (group / "memory.stat").write_text("")

    reading = MemorySense(proc_root=proc(tmp_path), cgroup=str(group)).read()

    assert (reading.total_bytes, reading.available_bytes) == (64 << 20, 4 << 20)


def test_a_cgroup_that_is_none_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no cgroup v2"):
        MemorySense(proc_root=proc(tmp_path), cgroup=str(tmp_path / "none")).read()


def test_this_machine_can_be_read() -> None:
    reading = MemorySense(proc_root=Path("/proc")).read()

    assert 0 < reading.available_bytes <= reading.total_bytes
