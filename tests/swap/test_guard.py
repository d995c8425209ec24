"""Whether processes may be swapped to, seen from outside; and what a process can do for itself."""

import ctypes
import errno
import os
from pathlib import Path

import pytest

from farside.kmod_shim import guard
from farside.kmod_shim.guard import cgroup_of
from farside.kmod_shim.guard_check import Mapped, guard_checks, io_flags, unlocked
from farside.kmod_shim.preflight import Check, Outcome
from tests.swap import tree


def checks(root: Path, *pids: int) -> dict[str, Check]:
    return {check.name: check for check in guard_checks(root, pids)}


def failed(root: Path, *pids: int) -> set[str]:
    return {name for name, check in checks(root, *pids).items() if check.outcome is Outcome.FAILED}


def test_a_guarded_family_passes_every_check(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    tree.write(root, {"proc/sys/vm/min_free_kbytes": "524288\n", "proc/sys/vm/watermark_boost_factor": "0\n"})
    tree.process(root, 7)
    tree.process(root, 8)

    assert {check.outcome for check in checks(root, 7, 8).values()} == {Outcome.OK}


def test_one_thread_that_was_made_too_early_is_found(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    tree.process(root, 7)
    tree.write(root, {"proc/7/task/9/stat": tree.stat(0x40)})

    assert failed(root, 7) == {"io flusher"}
    assert checks(root, 7)["io flusher"].found == "process 7: 1 thread without PR_SET_IO_FLUSHER"


def test_half_of_the_flags_is_not_enough(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    tree.process(root, 7, flags=0x80000)

    assert failed(root, 7) == {"io flusher"}


def test_one_thread_that_may_not_use_the_reserve_is_found(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    tree.process(root, 7)
    tree.write(root, {"proc/7/task/9/stat": tree.stat(0x180040, os.SCHED_OTHER)})

    assert failed(root, 7) == {"real time"}
    assert checks(root, 7)["real time"].found == "process 7: 1 thread without SCHED_RR"


def test_every_fault_names_its_process_and_what_to_do(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    tree.process(root, 7)
    tree.process(root, 8, flags=0, policy=os.SCHED_OTHER, score=0, group="/user.slice")
    tree.write(
        root,
        {
            "proc/8/smaps": tree.smaps(("[heap]", 2048, "rd wr")),
            "sys/fs/cgroup/user.slice/memory.swap.max": "max\n",
        },
    )

    found = checks(root, 7, 8)

    assert failed(root, 7, 8) == {"io flusher", "real time", "memory locked", "oom score", "cgroup"}
    assert found["memory locked"].found == "process 8: 2 MiB may be swapped out"
    assert found["oom score"].found == "process 8: oom_score_adj is 0"
    assert found["cgroup"].found == "process 8: cgroup /user.slice may swap (memory.swap.max is max)"
    assert "swap attach" in found["cgroup"].advice


def test_a_process_that_has_ended_is_no_guarded_one(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)

    assert {"memory locked", "oom score", "cgroup", "io flusher", "real time"} == failed(root, 7)


def test_flags_are_found_behind_any_name() -> None:
    assert io_flags("1 (a) b (c) S 1 2 3 4 5 1572928 0 0") == 1572928


def test_what_is_the_kernels_own_needs_no_lock() -> None:
    text = tree.smaps(
        ("[vdso]", 8, "rd ex mr mw me de"),
        ("anon_inode:[io_uring]", 16, "rd wr sh mr mw me ms de sd mm"),
        ("/dev/infiniband/uverbs0", 4, "rd wr sh pf io"),
        ("/dev/infiniband/uverbs0", 56, "rd wr sh mr mw me ms de dd mm"),
        ("/dev/shm/x", 0, "rd wr"),
        ("[stack]", 12, "rd wr gd"),
        ("/memfd:farside-swap0-state (deleted)", 64, "rd wr sh lo"),
    )

    assert unlocked(text) == (Mapped(name="[stack]", resident_bytes=12 << 10),)


def test_a_cgroup_is_read_past_those_of_version_one() -> None:
    assert cgroup_of("12:memory:/old\n0::/system.slice/x.service\n") == "/system.slice/x.service"
    assert cgroup_of("12:memory:/old\n") is None


# --- what a process does for itself; the kernel decides how much of it


def test_a_unit_that_may_not_swap_is_left_alone(tmp_path: Path, harmless: None) -> None:
    root = own_group(tmp_path, swap_max="0\n")

    assert guard.guard_family("swap0", root) == ()
    assert not (root / "sys/fs/cgroup/farside-swap0").exists()


def own_group(root: Path, *, swap_max: str, others: str = "") -> Path:
    return tree.write(
        root,
        {
            "proc/self/cgroup": "0::/system.slice/farside.service\n",
            "proc/self/oom_score_adj": "0\n",
            "sys/fs/cgroup/cgroup.procs": "",
            "sys/fs/cgroup/cgroup.subtree_control": "cpu\n",
            "sys/fs/cgroup/system.slice/farside.service/cgroup.procs": f"{os.getpid()}\n{others}",
            "sys/fs/cgroup/system.slice/farside.service/memory.swap.max": swap_max,
        },
    )


def test_a_unit_of_our_own_is_told_not_to_swap(tmp_path: Path, harmless: None) -> None:
    root = own_group(tmp_path, swap_max="max\n")

    assert guard.guard_family("swap0", root) == ()
    assert (root / "sys/fs/cgroup/system.slice/farside.service/memory.swap.max").read_text() == "0"
    assert (root / "proc/self/oom_score_adj").read_text() == "-1000"


def test_among_others_a_group_of_our_own_is_made(tmp_path: Path, harmless: None) -> None:
    root = own_group(tmp_path, swap_max="max\n", others="999999\n")
    (root / "sys/fs/cgroup/farside-swap0").mkdir()

    assert guard.guard_family("swap0", root) == ()
    assert (root / "sys/fs/cgroup/farside-swap0/memory.swap.max").read_text() == "0"
    assert (root / "sys/fs/cgroup/cgroup.subtree_control").read_text() == "+memory"
    assert (root / "sys/fs/cgroup/system.slice/farside.service/memory.swap.max").read_text() == "max\n"


def test_a_machine_without_cgroups_says_so(tmp_path: Path, harmless: None) -> None:
    root = tree.write(tmp_path, {"proc/self/cgroup": "12:memory:/\n", "proc/self/oom_score_adj": "0\n"})

    (failure,) = guard.guard_family("swap0", root)

    assert failure.what == "cgroup"
    assert "no cgroup v2" in failure.reason


@pytest.fixture
def harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own process stays as it is: the system calls say yes and do nothing."""

    class Libc:
        def prctl(self, *arguments: int) -> int:
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)


def test_who_may_not_be_real_time_says_so(tmp_path: Path, harmless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "sched_setscheduler", refuse)

    (failure,) = guard.guard_family("swap0", own_group(tmp_path, swap_max="0\n"))

    assert (failure.what, failure.reason) == ("SCHED_RR", "Operation not permitted")


def test_who_is_real_time_already_stays_as_it_is(
    tmp_path: Path, harmless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[object] = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_FIFO)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *wanted: set_to.append(wanted))

    assert guard.guard_family("swap0", own_group(tmp_path, swap_max="0\n")) == ()
    assert set_to == []
