"""A stock kernel swaps to /dev/nbd0: on, off, refused, suspended; what breaks meanwhile is test_survival.py's."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.kmod_shim.guard_check import IO_FLUSHER, io_flags
from tests.support.programs import outcome, run
from tests.support.waiting import until
from tests.vm.guest.swap_plane import LIMIT_S, Plane, hog, kernel_errors, swap, swap_must, vmstat

DEVICE = "/dev/nbd0"


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    """The machine's settings before anything was attached."""
    return settings()


@pytest.fixture(scope="module")
def attached(plane: Plane, before: dict[str, str]) -> Iterator[str]:
    """What attaching printed; detached in the end by `test_...goes_back...`, or here when that has failed."""
    outcome(["dmesg", "--clear"])
    yield swap_must("attach", "--socket", str(plane.admin_socket), "--connections", "2")
    if DEVICE in Path("/proc/swaps").read_text():
        swap("detach", "--force-although-memory-may-run-out")


def settings() -> dict[str, str]:
    return {name: Path("/proc/sys/vm", name).read_text().strip() for name in ("page-cluster", "min_free_kbytes")}


def test_one_command_makes_swap(attached: str, plane: Plane) -> None:
    assert attached == f"{DEVICE}: swap0, 128 MiB, 2 connections, swap, priority 100\n"
    (told,) = json.loads(swap_must("status", "--json"))
    block = told["block"]
    assert (block["scheduler"], block["queue_depth"], told["server_clients"]) == ("none", 128, 2)
    assert (told["swap"]["path"], told["swap"]["priority"]) == (DEVICE, 100)
    assert settings()["page-cluster"] == "5"
    assert run(["blkid", "-p", "-o", "value", "-s", "TYPE", DEVICE]).strip() == "swap"


@pytest.mark.usefixtures("attached")
def test_every_thread_of_the_borrower_may_be_swapped_to(plane: Plane) -> None:
    told = plane.told()

    for pid in (told["supervisor_pid"], told["server_pid"]):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        assert {io_flags((task / "stat").read_text()) & IO_FLUSHER for task in tasks} == {IO_FLUSHER}
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "-1000\n"
    assert len(tasks) > 4  # the workers' are among them


@pytest.mark.usefixtures("attached")
def test_a_second_attachment_is_refused(plane: Plane) -> None:
    again = swap("attach", "--socket", str(plane.admin_socket), "--device", DEVICE)

    assert again.status == 2
    assert f"swap0 is attached already, as {DEVICE}" in again.stderr
    assert f"{DEVICE} is busy" in again.stderr


@pytest.mark.usefixtures("attached")
def test_a_program_of_three_times_its_memory_keeps_every_page(plane: Plane, tmp_path: Path) -> None:
    in_before, out_before = vmstat("pswpin"), vmstat("pswpout")

    with hog(tmp_path) as program:
        said = program.end()

    assert said.startswith("wrong=0 ")
    assert vmstat("pswpout") - out_before > 24 << 8  # two thirds of 36 MiB
    assert vmstat("pswpin") - in_before > 1000
    assert plane.told()["pages_in"]["remote"] > 0
    assert kernel_errors() == []


@pytest.mark.usefixtures("attached")
@pytest.mark.parametrize("is_swapping", [False, True], ids=["with pages out", "while pages move"])
def test_a_suspension_is_survived(plane: Plane, tmp_path: Path, is_swapping: bool) -> None:
    # The kernel's own rehearsal: every process is frozen for five seconds, and thawed.
    rehearsal = Path("/sys/power/pm_test")
    if not rehearsal.exists():
        pytest.skip("this kernel has no /sys/power/pm_test")
    with hog(tmp_path, seconds=30) as program:
        rehearsal.write_text("freezer")
        try:
            if not is_swapping:
                program.pause()
            done = outcome(["sh", "-c", "echo freeze > /sys/power/state"], limit_s=LIMIT_S)
        finally:
            rehearsal.write_text("none")
            program.go_on()
        said = program.end()

    # Who waits for a page of a frozen server can't be frozen: the kernel gives up after 20 s, and all goes on.
    assert is_swapping or done.status == 0, done.stderr
    assert said.startswith("wrong=0 ")
    assert plane.told()["errors"]["pages_lost"] == 0


@pytest.mark.usefixtures("attached")
def test_the_machine_does_not_hibernate_onto_it() -> None:
    if "secretmem.enable=1" not in Path("/proc/cmdline").read_text() and os.uname().release.startswith("6.1."):
        pytest.skip("a kernel below 6.5 without secretmem.enable=1 has nothing that would refuse it")

    assert "[disabled]" in Path("/sys/power/disk").read_text()
    with pytest.raises(PermissionError):
        Path("/sys/power/state").write_text("disk")
    said = outcome(["farside", "doctor", "--json"], limit_s=LIMIT_S).stdout
    (check,) = [one for one in json.loads(said) if is_hibernation(one)]
    assert (check["outcome"], check["found"]) == ("ok", "the kernel refuses it")


def is_hibernation(check: dict[str, str]) -> bool:
    return check["name"] == "hibernation"


@pytest.mark.usefixtures("attached")
def test_systemd_says_why_it_does_not_hibernate() -> None:
    asked = outcome(["/lib/systemd/systemd-sleep", "hibernate"], limit_s=LIMIT_S)

    assert asked.status != 0
    assert "disabled by configuration" in asked.stderr


@pytest.mark.usefixtures("attached")
def test_swap_stays_on_where_a_programs_limit_would_kill_it(tmp_path: Path) -> None:
    with hog(tmp_path, seconds=5) as program:
        program.pause()  # else it may have done its five seconds before a slow machine has looked
        refused = swap("detach", DEVICE)
        assert program.is_running()
        program.go_on()
        said = program.end()

    assert refused.status == 2
    assert "cgroup /hog" in refused.stderr
    assert "its programs would be killed" in refused.stderr
    assert said.startswith("wrong=0 ")


def test_what_is_out_comes_back_and_the_machine_is_as_before(
    attached: str, plane: Plane, before: dict[str, str]
) -> None:
    said = swap_must("detach")

    assert said.startswith(f"{DEVICE}: detached")
    assert DEVICE not in Path("/proc/swaps").read_text()
    assert not Path("/sys/block/nbd0/pid").exists()
    assert settings() == before
    assert swap("status").status == 3
    until(lambda: plane.told()["connections"] == 0, what="no client", deadline_s=60, every_s=0.5)
