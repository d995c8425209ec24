"""The driver of parts that NVIDIA's Multi-Process Service limits, with a stand-in for its control program."""

import asyncio
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from farside.agent.serving.handle import ServeError
from farside.agent.serving.partition import mps, mps_keeper
from farside.agent.serving.partition.mps import MpsDriver, MpsPlace
from farside.agent.serving.partition.mps_control import CONTROL, why_silent
from farside.agent.serving.partition.policy import Device
from farside.errors import Unavailable
from tests.serving.executors import Watched, children, small_models
from tests.serving.front import in_loop
from tests.serving.nvidia_stand_in import Nvml
from tests.support.fault_executor import Faults
from tests.support.waiting import DEADLINE_S, text_of, until


def folder_of(part: MpsPlace) -> str:
    """The folder of the daemon that a part belongs to."""
    return part.entry.environment["CUDA_MPS_PIPE_DIRECTORY"]


def daemon_of(control: Path) -> tuple[int, int]:
    """Numbers of the processes of the daemon that has started last, and of its server."""
    daemon, server = until(lambda: text_of(Path(f"{control}.pids")).split(), what="the daemon has started")
    return int(daemon), int(server)


def has_ended(pid: int) -> bool:
    return text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] in ([], ["Z"])


def test_mps_has_a_daemon_of_its_own_for_each_gpu_until_its_last_part_is_closed(control: Path) -> None:
    driver = MpsDriver(Nvml(is_cut=False))
    first, second, other = (driver.open(Device(number=gpu), part) for gpu, part in ((0, 30), (0, 70), (1, 100)))
    lines = until(lambda: two_lines(control), what="both daemons have started")
    started = sorted((json.loads(line) for line in lines), key=lambda one: str(one[1]))

    other_folder = folder_of(other)
    folder = folder_of(first)
    assert folder_of(second) == folder
    assert started == [[folder, "GPU-0", folder], [other_folder, "GPU-1", other_folder]]
    assert first.entry.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert second.entry.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "70"
    first.close()
    assert Path(folder).exists()
    second.close()
    until(lambda: not Path(folder).exists(), what="the daemon has ended")
    assert Path(other_folder).exists()
    other.close()
    until(lambda: not Path(other_folder).exists(), what="the other one has ended")


@pytest.fixture
def broken(control: Path) -> None:
    """No control daemon comes up."""
    Path(f"{control}.broken").touch()


@in_loop
async def test_an_executor_whose_mps_daemon_does_not_come_up_is_not_started_and_the_line_has_its_logs_last_one(
    broken: None, tmp_path: Path
) -> None:
    models = small_models(tmp_path)
    place = MpsDriver(Nvml(is_cut=False)).open(Device(), 20)

    with pytest.raises(ServeError, match=f"{CONTROL}: does not answer in {folder_of(place)}: no room"):
        await Watched().start(models, place)
    until(lambda: not Path(folder_of(place)).exists(), what="what was of the daemon is gone")


def test_an_mps_daemon_that_is_up_answers(control: Path) -> None:
    place = MpsDriver(Nvml(is_cut=False)).open(Device(), 20)

    assert why_silent(folder_of(place)) == ""
    place.close()
    until(lambda: not Path(folder_of(place)).exists(), what="the daemon has ended")


def test_a_folder_whose_path_is_too_long_for_an_mps_daemons_socket_is_refused(
    control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    with pytest.raises(Unavailable, match=f"{deep}, .*: its path is too long for a socket; set TMPDIR to a shorter"):
        MpsDriver(Nvml(is_cut=False)).open(Device(), 50)

    assert not list(deep.iterdir())


def test_what_ends_a_job_or_comes_from_a_terminal_ends_no_mps_daemon(control: Path) -> None:
    others = children()
    part = MpsDriver(Nvml(is_cut=False)).open(Device(), 50)
    (keeper,) = map(int, children() - others)
    daemon, server = daemon_of(control)

    for pid in (keeper, daemon, server):
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)

    assert os.getpgid(daemon) != os.getpgid(0)
    assert why_silent(folder_of(part)) == ""
    assert not has_ended(server)
    part.close()
    until(lambda: not Path(folder_of(part)).exists(), what="the daemon has ended")


def test_a_daemon_that_does_not_end_when_it_is_asked_to_is_killed_with_its_server(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "_QUIT_S", 0.1)
    Path(f"{control}.deaf").touch()
    part = MpsDriver(Nvml(is_cut=False)).open(Device(), 50)
    daemon, server = daemon_of(control)

    part.close()

    until(lambda: has_ended(daemon) and has_ended(server), what="both have ended")
    until(lambda: not Path(folder_of(part)).exists(), what="their folder is gone")


def test_a_daemon_whose_folder_is_gone_is_killed_without_being_asked_again(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_END_S", "_QUIT_S"):
        monkeypatch.setattr(mps, name, 2 * DEADLINE_S)
    part = MpsDriver(Nvml(is_cut=False)).open(Device(), 50)
    daemon, server = daemon_of(control)
    shutil.rmtree(folder_of(part))

    part.close()

    until(lambda: has_ended(daemon) and has_ended(server), what="both have ended")


class DeafDaemon:
    """It does not end, on a clock that goes on as it is waited for. Asked to end, it answers after ``answer_s``."""

    def __init__(self, answer_s: float) -> None:
        self.now_s, self._answer_s = 1000.0, answer_s

    def ask(self, folder: str, command: str, limit_s: float) -> bool:
        self.now_s += min(self._answer_s, limit_s)
        return self._answer_s <= limit_s

    def wait(self, limit_s: float) -> None:
        self.now_s += max(limit_s, 0)
        raise subprocess.TimeoutExpired("", limit_s)


@pytest.mark.parametrize("answer_s", [0.0, 5.0, 60.0], ids=["at once", "slowly", "never"])
def test_a_daemon_has_one_time_limit_for_its_answer_and_its_end(
    answer_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = DeafDaemon(answer_s)
    monkeypatch.setattr(mps_keeper, "ask", daemon.ask)
    monkeypatch.setattr(mps_keeper, "time", SimpleNamespace(monotonic=lambda: daemon.now_s))

    with suppress(subprocess.TimeoutExpired):
        mps_keeper._quit(cast("subprocess.Popen[bytes]", daemon), str(tmp_path), 8)

    assert daemon.now_s == pytest.approx(1008, abs=0.1)


def test_variables_of_another_mps_daemon_are_none_of_ours(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    part = MpsDriver(Nvml(is_cut=False)).open(Device(), 50)
    assert why_silent(folder_of(part)) == ""

    assert Path(f"{control}.mps").read_text() == "CUDA_MPS_LOG_DIRECTORY CUDA_MPS_PIPE_DIRECTORY"
    assert json.loads(control.read_text())[0] == folder_of(part)
    part.close()
    until(lambda: not Path(folder_of(part)).exists(), what="the daemon has ended")


class CutNvml(Nvml):
    """All GPUs are cut into instances."""

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return 1, 1


def test_where_all_gpus_are_cut_into_instances_mps_does_not_work(control: Path) -> None:
    problem = "NVIDIA's driver finds no GPU that is not cut into instances"

    assert MpsDriver(CutNvml()).capabilities().problem == problem
    assert MpsDriver(Nvml()).capabilities().problem == ""


def test_where_there_is_no_room_for_an_mps_daemons_pipe_the_line_says_where(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(prefix: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)

    with pytest.raises(Unavailable, match=f"{tempfile.gettempdir()}, .*: No space left on device"):
        MpsDriver(Nvml(is_cut=False)).open(Device(), 50)


def no_more_files(pid: int) -> int:
    raise OSError(24, "Too many open files")


def no_more_signals(parent: int) -> None:
    raise ValueError("no signal comes from there")


@pytest.mark.parametrize(
    ("where", "fails", "line"),
    [
        ("os.pidfd_open", no_more_files, "Too many open files"),
        ("farside.agent.serving.partition.mps.start_kept", no_more_signals, "Exception occurred in preexec_fn"),
    ],
    ids=["no file is left", "the keeper does not begin"],
)
def test_a_daemon_that_can_not_be_kept_is_refused_in_one_line_and_leaves_no_process_and_no_folder(
    control: Path, monkeypatch: pytest.MonkeyPatch, where: str, fails: Callable[[int], object], line: str
) -> None:
    others = children()
    with tempfile.TemporaryDirectory() as folder:  # whose path is short
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(where, fails)

        with pytest.raises(Unavailable, match=f"{CONTROL}: {line}"):
            MpsDriver(Nvml(is_cut=False)).open(Device(), 50)

        assert children() <= others, "daemons of tests before may end still"
        assert not os.listdir(folder)


def test_giving_a_gpu_up_waits_for_no_daemon_and_the_next_part_has_another_one(control: Path) -> None:
    driver = MpsDriver(Nvml(is_cut=False))
    hold = Path(f"{control}.hold")
    hold.touch()
    part = driver.open(Device(), 100)
    folder = folder_of(part)

    part.close()
    assert Path(folder).exists(), "its daemon ends still"
    again = driver.open(Device(), 100)

    assert folder_of(again) != folder
    hold.unlink()
    until(lambda: not Path(folder).exists(), what="the first daemon has ended")
    assert Path(folder_of(again)).exists()
    again.close()
    until(lambda: not Path(folder_of(again)).exists(), what="the second one has ended")


def test_where_a_daemon_has_died_the_next_part_has_another_one_which_outlives_the_parts_of_the_first(
    control: Path,
) -> None:
    driver, others = MpsDriver(Nvml(is_cut=False)), children()
    part = driver.open(Device(), 50)
    (pid,) = children() - others
    os.kill(int(pid), signal.SIGKILL)
    os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)

    again = driver.open(Device(), 50)
    part.close()
    until(lambda: not Path(folder_of(part)).exists(), what="what was of the first is gone")
    beside = driver.open(Device(), 50)

    assert folder_of(again) == folder_of(beside) != folder_of(part)
    assert Path(folder_of(again)).exists()
    again.close()
    beside.close()
    until(lambda: not Path(folder_of(again)).exists(), what="the second daemon has ended")


# A front that has a part of a GPU, and says so.
FRONT = """
from farside.agent.serving.partition.mps import MpsDriver
from farside.agent.serving.partition.policy import Device
from tests.serving.nvidia_stand_in import Nvml
part = MpsDriver(Nvml(is_cut=False)).open(Device(), 50)
print(part.entry.environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
input()
"""


@pytest.mark.long
@pytest.mark.parametrize("is_keeper_killed", [False, True])
def test_a_daemon_ends_with_a_front_that_is_killed_and_the_next_one_removes_its_folder(
    is_keeper_killed: bool, control: Path
) -> None:
    front = subprocess.Popen([sys.executable, "-c", FRONT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with front:
        assert front.stdout is not None
        folder = Path(front.stdout.readline().strip())
        daemon, server = daemon_of(control)
        (keeper,) = map(int, text_of(Path(f"/proc/{front.pid}/task/{front.pid}/children")).split())
        driver = MpsDriver(Nvml(is_cut=False))
        driver.open(Device(), 50).close()
        assert folder.exists()
        assert not has_ended(daemon)
        if is_keeper_killed:
            os.kill(keeper, signal.SIGKILL)
            until(lambda: has_ended(daemon), what="the daemon has ended")
            assert folder.exists()
        front.kill()
    until(lambda: has_ended(daemon) and has_ended(keeper), what="the daemon has ended, and its keeper")
    if is_keeper_killed:
        os.kill(server, signal.SIGKILL)
    until(lambda: has_ended(server), what="its server has ended")

    part = driver.open(Device(), 50)

    assert not folder.exists()
    assert Path(folder_of(part)).exists()
    part.close()
    until(lambda: not Path(folder_of(part)).exists(), what="the second one has ended")


@pytest.mark.parametrize(
    ("device", "line"),
    [
        (Device(uuid="MIG-1.0"), "GPU MIG-1.0: an instance is not cut by limits here; device = 'gpu' has it whole"),
        (Device(number=1), "GPU 1: is cut into instances; name one of them by its UUID"),
        (Device(uuid="GPU-1"), "GPU GPU-1: is cut into instances"),
    ],
)
def test_mps_cuts_no_gpu_that_is_cut_and_no_instance(control: Path, device: Device, line: str) -> None:
    driver = MpsDriver(Nvml())

    with pytest.raises(Unavailable, match=line):
        driver.open(device, 50)
    assert driver.devices() == (Device(number=0, uuid="GPU-0"),)
    assert not control.exists()


class LimitsOnCores(MpsDriver):
    """Has executors compute on the processor, as this machine's frameworks do."""

    def open(self, device: Device, part_pct: int) -> MpsPlace:
        place = super().open(device, part_pct)
        place.entry = msgspec.structs.replace(place.entry, computes_on="cpu")
        return place


@in_loop
async def test_an_error_that_spoils_a_gpu_ends_all_executors_of_its_mps_daemon_and_the_next_one_has_another(
    control: Path, tmp_path: Path
) -> None:
    models, faults, driver = small_models(tmp_path), Faults(tmp_path / "faults"), LimitsOnCores(Nvml(is_cut=False))
    culprit, idle, apart = Watched(), Watched(), Watched()
    for one, gpu, part in ((culprit, 0, 20), (idle, 0, 80), (apart, 1, 100)):
        await one.start(models, driver.open(Device(number=gpu), part), program=faults.program)
    first = culprit.executor.place.entry.daemon
    assert idle.executor.place.entry.daemon == first
    faults.arm("broken")

    culprit.executor.run(1, "mlp", 1, 0)

    assert (await culprit.done()).problem
    assert (await culprit.ended()).line == "its process ended with 3"
    again = driver.open(Device(), 20)
    assert again.entry.daemon != first
    assert (await idle.ended()).line == "its process was killed by SIGKILL"
    assert apart.executor.is_ready
    await asyncio.to_thread(until, lambda: not Path(first).exists(), what="the first daemon has ended")
    assert why_silent(again.entry.daemon) == ""
    again.close()
    for one in (culprit, idle, apart):
        await one.executor.close()


@in_loop
async def test_an_error_that_spoils_a_gpu_as_an_executor_loads_ends_the_others_and_the_next_one_has_another_daemon(
    control: Path, tmp_path: Path
) -> None:
    models, faults, driver = small_models(tmp_path), Faults(tmp_path / "faults"), LimitsOnCores(Nvml(is_cut=False))
    idle = Watched()
    await idle.start(models, driver.open(Device(), 80), program=faults.program)
    first = idle.executor.place.entry.daemon
    faults.arm("broken")

    with pytest.raises(ServeError, match="an error that a test asked for"):
        await Watched().start(models, driver.open(Device(), 20), program=faults.program)

    assert (await idle.ended()).line == "its process was killed by SIGKILL"
    again = driver.open(Device(), 20)
    assert again.entry.daemon != first
    again.close()
    await idle.executor.close()


@in_loop
async def test_an_executor_of_an_mps_daemon_that_has_ended_is_forgotten_before_any_garbage_collection(
    control: Path, tmp_path: Path
) -> None:
    watched = Watched()
    await watched.start(small_models(tmp_path), LimitsOnCores(Nvml(is_cut=False)).open(Device(), 50))
    folder = Path(watched.executor.place.entry.daemon)
    await watched.executor.close()
    known = weakref.ref(watched.executor), weakref.ref(watched.executor.place)
    gc.disable()
    try:
        del watched
        assert [one() for one in known] == [None, None]
    finally:
        gc.enable()
    await asyncio.to_thread(until, lambda: not folder.exists(), what="the daemon has ended")


def two_lines(file: Path) -> list[str]:
    lines = text_of(file).splitlines()
    return lines if len(lines) == 2 else []


@pytest.mark.parametrize(
    ("nvml", "line"),
    [
        (Nvml(-1), "libnvidia-ml.so.1: Driver Not Loaded; it comes with NVIDIA's driver"),
        (Nvml(0), "NVIDIA's driver finds no GPU"),
        (Nvml(1), f"the program {CONTROL} is not in PATH"),
    ],
)
def test_mps_says_which_library_or_program_is_missing(
    nvml: Nvml, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert MpsDriver(nvml).capabilities().problem.startswith(line)
    with pytest.raises(Unavailable, match=line.split(";")[0]):
        MpsDriver(nvml).open(Device(), 50)
