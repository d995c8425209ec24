"""What the doctor finds, in fake trees and on this machine."""

import os
import resource
from pathlib import Path

import pytest

from farside.kmod_shim import preflight, probes
from farside.kmod_shim.preflight import Disk, Outcome
from farside.units import GIB, MIB

MEMINFO = "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\nHugePages_Free: {huge}\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_enough_memory_is_told_in_numbers(tmp_path: Path) -> None:
    check = preflight.memory_check(tree(tmp_path, {"proc/meminfo": MEMINFO.format(huge=0)}))

    assert (check.outcome, check.found) == (Outcome.OK, "64 GiB, 32 GiB of it available")


def test_little_memory_is_a_warning(tmp_path: Path) -> None:
    check = preflight.memory_check(tree(tmp_path, {"proc/meminfo": "MemTotal: 524288 kB\n"}))

    assert check.outcome is Outcome.WARNING


def test_huge_pages_are_reserved_or_transparent_or_missing(tmp_path: Path) -> None:
    shmem = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    reserved = tree(tmp_path / "a", {"proc/meminfo": MEMINFO.format(huge=12)})
    transparent = tree(tmp_path / "b", {"proc/meminfo": MEMINFO.format(huge=0), shmem: "always [advise] never\n"})
    none = tree(tmp_path / "c", {"proc/meminfo": MEMINFO.format(huge=0), shmem: "always advise [never]\n"})

    checks = [preflight.huge_page_check(root) for root in (reserved, transparent, none)]

    assert [check.found for check in checks[:2]] == [
        "12 reserved pages are free",
        "transparent, for memory files: advise",
    ]
    assert checks[2].outcome is Outcome.WARNING


def test_the_reserve_for_allocation_under_pressure_grows_with_memory(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": MEMINFO.format(huge=0), "proc/sys/vm/min_free_kbytes": "67584\n"})

    check = preflight.min_free_check(root)

    assert check.advice == "before swapping to it: sysctl vm.min_free_kbytes=524288"


@pytest.mark.parametrize(("factor", "outcome"), [("15000", Outcome.WARNING), ("0", Outcome.OK), (None, Outcome.OK)])
def test_a_reserve_that_grows_by_itself_is_told(tmp_path: Path, factor: str | None, outcome: Outcome) -> None:
    root = tree(tmp_path, {"proc/sys/vm/watermark_boost_factor": f"{factor}\n"} if factor else {})

    assert preflight.boost_check(root).outcome is outcome


def test_capabilities_are_read_from_the_kernels_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 * MIB, 8 * MIB))
    with_it = tree(tmp_path / "a", {"proc/self/status": f"CapEff:\t{1 << 14:016x}\n"})
    without = tree(tmp_path / "b", {"proc/self/status": f"CapEff:\t{1 << 13:016x}\n"})

    assert preflight.memlock_check(with_it).outcome is Outcome.OK
    assert preflight.memlock_check(without).found.startswith("8 MiB may be pinned")


def test_nbd_is_loaded_or_there_or_not(tmp_path: Path) -> None:
    release = {"proc/sys/kernel/osrelease": "6.1.0-56-amd64\n"}
    listed = "lib/modules/6.1.0-56-amd64/modules.dep"
    roots = [
        tree(tmp_path / "a", {"sys/module/nbd/refcnt": "0\n"}),
        tree(tmp_path / "b", {**release, listed: "kernel/drivers/block/nbd.ko.xz:\n"}),
        tree(tmp_path / "c", {**release, listed: "kernel/drivers/block/loop.ko:\n"}),
    ]

    found = [preflight.nbd_check(root).found for root in roots]

    assert found == ["loaded", "there, not loaded", "not with this kernel (6.1.0-56-amd64)"]


@pytest.mark.parametrize(
    ("features", "outcome", "found"),
    [
        ("uring, aes, rdma", Outcome.OK, "rxe0"),
        ("uring, aes", Outcome.WARNING, "rxe0; the engine was built without rdma-core"),
    ],
)
def test_rdma_devices_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: str, outcome: Outcome, found: str
) -> None:
    root = tree(tmp_path, {"sys/class/infiniband/rxe0/node_type": "1: CA\n"})
    monkeypatch.setattr(probes, "engine_features", lambda: features)

    assert (preflight.rdma_check(root).outcome, preflight.rdma_check(root).found) == (outcome, found)
    assert preflight.rdma_check(tmp_path / "none").outcome is Outcome.WARNING


def test_a_disk_that_is_too_small_fails(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.touch()
    os.truncate(path, 64 * MIB)

    check = preflight.disk_check(Disk(path=path, size_bytes=GIB))

    assert check.outcome is Outcome.FAILED
    assert f"truncate -s {GIB} {path}" in check.advice


def test_a_disk_that_is_no_disk_fails() -> None:
    check = preflight.disk_check(Disk(path=Path("/dev/null"), size_bytes=0))

    assert check.outcome is Outcome.FAILED
    assert "neither a file nor a block device" in check.found


def test_a_disk_that_is_not_there_is_made_where_there_is_room(tmp_path: Path) -> None:
    roomy = preflight.disk_check(Disk(path=tmp_path / "disk", size_bytes=MIB))
    full = preflight.disk_check(Disk(path=tmp_path / "disk", size_bytes=1 << 60))
    nowhere = preflight.disk_check(Disk(path=tmp_path / "none/disk", size_bytes=MIB))

    assert (roomy.outcome, full.outcome, nowhere.outcome) == (Outcome.OK, Outcome.FAILED, Outcome.FAILED)
    assert roomy.found == f"{tmp_path}/disk: made at the first start, with 1 MiB"
    assert "more than the" in full.found
    assert nowhere.advice.startswith(f"make {tmp_path}/none")
    assert not (tmp_path / "disk").exists()


def test_no_disk_is_no_failure() -> None:
    assert preflight.disk_check(None).outcome is Outcome.OK


def test_this_machine_can_be_checked() -> None:
    checks = preflight.preflight(Path("/"), keys=(), disk=None)

    assert len({check.name for check in checks}) == len(checks) == 10
    assert all(check.advice for check in checks if check.outcome is not Outcome.OK)
