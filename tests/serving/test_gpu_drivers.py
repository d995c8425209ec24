"""Drivers of GPU parts: with a stand-in for NVIDIA's library and its control program, and on a GPU if there is one."""

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
from typing import ClassVar, cast

import msgspec
import numpy as np
import pytest

from farside.agent.serving.describe import ModelRequest, describe
from farside.agent.serving.handle import ServeError
from farside.agent.serving.partition import mps, mps_keeper
from farside.agent.serving.partition.catalog import DRIVERS
from farside.agent.serving.partition.fixed import FixedPlace
from farside.agent.serving.partition.gpu import GpuDriver
from farside.agent.serving.partition.mig import MigDriver
from farside.agent.serving.partition.mps import MpsDriver, MpsPlace
from farside.agent.serving.partition.mps_control import CONTROL, why_silent
from farside.agent.serving.partition.nvidia import gpu_named
from farside.agent.serving.partition.policy import Device
from farside.agent.serving.remote import Address, RemotePart
from farside.agent.serving.worker import Worker
from farside.errors import ConfigError, Unavailable
from tests.serving.executors import Watched, children, small_models
from tests.serving.front import in_loop
from tests.serving.test_worker import KEY, Front
from tests.support.fault_executor import Faults
from tests.support.waiting import DEADLINE_S, text_of, until

# A control daemon that says with what it was started, and ends when it is told to, but for as long as it is held up, or
# is deaf to it; a broken one ends at once. Its server ends when it is killed.
PROGRAM = """#!{python}
import json, os, subprocess, sys, time
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
if sys.argv[1:] == ["-f"]:
    if os.path.exists("{seen}.broken"):
        open(os.environ["CUDA_MPS_LOG_DIRECTORY"] + "/control.log", "w").write("Starting\\nno room\\n\\n")
        sys.exit(1)
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_LOG_DIRECTORY")
    with open("{seen}", "a") as file:
        file.write(json.dumps([folder, *[os.environ[name] for name in names]]) + "\\n")
    with open("{seen}.mps", "w") as file:
        file.write(" ".join(sorted(name for name in os.environ if name.startswith("CUDA_MPS_"))))
    with open("{seen}.pids", "w") as file:
        server = subprocess.Popen(["sleep", "600"])
        file.write(f"{{os.getpid()}} {{server.pid}}")
    open(folder + "/control", "w").close()
    while not os.path.exists(folder + "/quit") or os.path.exists("{seen}.deaf"):
        time.sleep(0.01)
    server.kill()
else:
    command = sys.stdin.read()
    while command == "quit\\n" and os.path.exists("{seen}.hold"):
        time.sleep(0.01)
    if not os.path.exists(folder + "/control"):
        sys.exit("Cannot find MPS control daemon process")
    if command == "quit\\n":
        open(folder + "/quit", "w").close()
    else:
        assert command == "get_server_list\\n"
"""


class NVMLError(Exception):
    pass


class Nvml:
    """A machine with two GPUs, the second one cut into instances of 3, 3 and 1 sevenths where ``is_cut``."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
    NVML_GPU_INSTANCE_PROFILE_4_SLICE, NVML_GPU_INSTANCE_PROFILE_7_SLICE = 3, 4
    NVML_GPU_INSTANCE_PROFILE_8_SLICE, NVML_GPU_INSTANCE_PROFILE_6_SLICE = 5, 6
    slices: ClassVar = {3: 4, 4: 7}  # by what profile
    mode: int | None = 0

    def __init__(self, gpus: int = 2, *, is_cut: bool = True) -> None:
        self._gpus, self._is_cut = gpus, is_cut

    def nvmlInit(self) -> None:  # noqa: N802
        if self._gpus < 0:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._gpus

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index >= self._gpus:
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetName(self, handle: object) -> str:  # noqa: N802
        return "NVIDIA A100 MIG 3g.20gb" if isinstance(handle, str) else "NVIDIA A100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=40 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=7, usedGpuMemory=3 << 20), SimpleNamespace(pid=8, usedGpuMemory=None)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=10, usedGpuMemory=5 << 20)]

    def nvmlDeviceGetUUID(self, handle: object) -> str:  # noqa: N802
        return f"MIG-{handle}" if isinstance(handle, str) else f"GPU-{handle}"

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (handle, handle) if self._is_cut else (0, 0)

    def nvmlDeviceGetComputeMode(self, handle: object) -> int:  # noqa: N802
        if self.mode is None:
            raise NVMLError("Not Supported")
        return self.mode

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, at: int) -> str:  # noqa: N802
        if at not in (0, 2, 5):
            raise NVMLError("Not Found")
        return f"{handle}.{at}"

    def nvmlDeviceGetAttributes_v2(self, instance: str) -> SimpleNamespace:  # noqa: N802
        slices = 1 if instance.endswith("5") else 3
        return SimpleNamespace(gpuInstanceSliceCount=slices, computeInstanceSliceCount=slices)

    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle: int, profile: int) -> SimpleNamespace:  # noqa: N802
        if profile not in self.slices:
            raise NVMLError("Not Supported")
        return SimpleNamespace(sliceCount=self.slices[profile])


def test_mig_hands_out_the_instances_there_are_each_once() -> None:
    driver, gpu = MigDriver(Nvml()), Device(number=1)

    assert driver.capabilities().parts == "14 %, 43 %, 43 %"
    first, second = driver.open(gpu, 43), driver.open(gpu, 43)
    assert [one.entry.environment for one in (first, second)] == [
        {"CUDA_VISIBLE_DEVICES": "MIG-1.0"},
        {"CUDA_VISIBLE_DEVICES": "MIG-1.2"},
    ]
    assert first.entry.computes_on == "cuda"
    assert not first.resize(14)
    with pytest.raises(Unavailable, match=r"no free instance of 43 %, but 43 % \(in use\), 43 % \(in use\), 14 %"):
        driver.open(gpu, 43)
    first.close()
    assert driver.open(gpu, 43).entry == first.entry


class SmallNvml(Nvml):
    """GPUs of 4 slices, as an A30 has."""

    slices: ClassVar = {3: 4}


class SharedNvml(Nvml):
    """Three compute instances that share a GPU instance of 3 slices."""

    def nvmlDeviceGetAttributes_v2(self, instance: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpuInstanceSliceCount=3, computeInstanceSliceCount=1)


class SilentNvml(Nvml):
    """It does not say how many slices a GPU has, and of instances only those that share nothing."""

    slices: ClassVar = {}

    def nvmlDeviceGetAttributes_v2(self, instance: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpuInstanceSliceCount=3, computeInstanceSliceCount=0)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [(SmallNvml, "25 %, 75 %, 75 %"), (SharedNvml, "14 %, 14 %, 14 %"), (SilentNvml, "43 %, 43 %, 43 %")],
)
def test_an_instance_is_as_large_as_the_slices_of_its_gpu_that_it_computes_on(kind: type[Nvml], parts: str) -> None:
    assert MigDriver(kind()).capabilities().parts == parts


def test_a_gpu_without_instances_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MigDriver(Nvml(gpus=1)).capabilities().problem.startswith("no GPU here has MIG instances")
    with pytest.raises(Unavailable, match="GPU 0: has no free instance of 50 %, but none"):
        MigDriver(Nvml()).open(Device(number=0), 50)


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control program's file of how it was started."""
    seen, program = tmp_path / "seen", tmp_path / CONTROL
    program.write_text(PROGRAM.format(python=sys.executable, seen=seen))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return seen


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


@pytest.mark.parametrize("kind", [GpuDriver, MpsDriver])
def test_a_gpu_that_no_process_may_use_is_refused_with_what_to_do(
    kind: type[GpuDriver | MpsDriver], control: Path
) -> None:
    nvml = Nvml(is_cut=False)
    nvml.mode = 2

    line = "GPU GPU-0: its compute mode is PROHIBITED: no process may use it; .*nvidia-smi -c DEFAULT"
    with pytest.raises(Unavailable, match=line):
        kind(nvml).open(Device(), 100)


@pytest.mark.parametrize("mode", [None, 0, 1, 3, 7])
def test_a_gpu_whose_compute_mode_lets_one_process_use_it_is_given(mode: int | None, control: Path) -> None:
    nvml = Nvml(is_cut=False)
    nvml.mode = mode

    GpuDriver(nvml).open(Device(), 100).close()
    MpsDriver(nvml).open(Device(), 50).close()


class CutNvml(Nvml):
    """All GPUs are cut into instances."""

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return 1, 1


def test_where_all_gpus_are_cut_into_instances_mps_does_not_work(control: Path) -> None:
    problem = "NVIDIA's driver finds no GPU that is not cut into instances"

    assert MpsDriver(CutNvml()).capabilities().problem == problem
    assert MpsDriver(Nvml()).capabilities().problem == ""


class LostNvml(Nvml):
    """The first GPU has fallen off the bus."""

    def nvmlDeviceGetUUID(self, handle: object) -> str:  # noqa: N802
        if handle == 0:
            raise NVMLError("GPU is lost")
        return super().nvmlDeviceGetUUID(handle)


@pytest.mark.parametrize("kind", [MpsDriver, GpuDriver])
def test_a_gpu_that_is_lost_is_said_to_be_and_another_one_is_found(
    kind: type[MpsDriver | GpuDriver], control: Path
) -> None:
    driver = kind(LostNvml(is_cut=False))

    with pytest.raises(Unavailable, match="NVIDIA's driver answers GPU is lost"):
        driver.open(Device(), 100)

    assert driver.devices() == (Device(number=1, uuid="GPU-1"),)
    driver.open(Device(uuid="GPU-1"), 100).close()


class UnpoweredNvml(Nvml):
    """The first GPU can't be asked anything."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 0:
            raise NVMLError("Insufficient External Power")
        return super().nvmlDeviceGetHandleByIndex(index)


@pytest.mark.parametrize("kind", [LostNvml, UnpoweredNvml])
def test_mig_hands_out_instances_beside_a_gpu_that_has_failed(kind: type[Nvml]) -> None:
    driver = MigDriver(kind())

    assert driver.capabilities().parts == "14 %, 43 %, 43 %"
    assert driver.open(Device(number=1), 43).part_pct == 43


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
from tests.serving.test_gpu_drivers import Nvml
part = MpsDriver(Nvml(is_cut=False)).open(Device(), 50)
print(part.entry.environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
input()
"""


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


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [(None, "GPU-0"), ("0", "GPU-0"), ("GPU-0", "GPU-0"), ("MIG-1.2", "MIG-1.2"), ("MIG-1.5", "MIG-1.5")],
)
def test_a_gpu_and_an_instance_are_one_part_each(visible: str | None, uuid: str) -> None:
    driver = GpuDriver(Nvml())
    device = gpu_named(visible, "CUDA_VISIBLE_DEVICES")

    part = driver.open(device, 100)

    assert part.entry.environment == {"CUDA_VISIBLE_DEVICES": uuid}
    assert part.entry.computes_on == "cuda"
    assert driver.identity(device).memory_mb == 40 << 10
    assert not part.resize(50)
    with pytest.raises(Unavailable, match="the driver gpu has no part of 50 %; give 100, or use mps"):
        driver.open(device, 50)


@pytest.mark.parametrize(
    ("visible", "line"),
    [
        ("1", "GPU 1: is cut into instances; name one of them by its UUID"),
        ("GPU-9", "GPU GPU-9: is not on this machine; nvidia-smi -L lists those there are"),
        ("MIG-1", "GPU MIG-1: 3 UUIDs begin so; give more of it; nvidia-smi -L lists those there are"),
        ("7", "GPU 7: NVIDIA's driver answers Invalid Argument"),
        ("0,1", "CUDA_VISIBLE_DEVICES 0,1: names several GPUs"),
        ("", "CUDA_VISIBLE_DEVICES is empty: it hides all GPUs; give a number or UUID"),
        ("first", "CUDA_VISIBLE_DEVICES first: is no GPU; give its number or UUID"),
    ],
)
def test_what_is_not_one_gpu_is_refused_in_one_line(visible: str, line: str) -> None:
    with pytest.raises((ConfigError, Unavailable), match=line):
        GpuDriver(Nvml()).open(gpu_named(visible, "CUDA_VISIBLE_DEVICES"), 100)


class LongNvml(Nvml):
    """One GPU has a UUID that another one's begins with."""

    def nvmlDeviceGetUUID(self, handle: object) -> str:  # noqa: N802
        return ("GPU-5a3", "GPU-5a", "GPU-71c0ffee")[int(str(handle))]


@pytest.mark.parametrize(("begin", "uuid"), [("GPU-71", "GPU-71c0ffee"), ("GPU-5a", "GPU-5a"), ("GPU-5a3", "GPU-5a3")])
def test_a_gpu_is_named_by_as_much_of_its_uuid_as_only_it_has(begin: str, uuid: str) -> None:
    driver = GpuDriver(LongNvml(3, is_cut=False))

    part = driver.open(gpu_named(begin, "CUDA_VISIBLE_DEVICES"), 100)

    assert part.entry.environment == {"CUDA_VISIBLE_DEVICES": uuid}


@pytest.mark.parametrize("kind", [MigDriver, MpsDriver, GpuDriver])
def test_a_line_names_a_gpu_by_its_uuid_where_it_has_one(
    kind: type[MigDriver | MpsDriver | GpuDriver], control: Path
) -> None:
    with pytest.raises(Unavailable, match="GPU GPU-1: "):
        kind(Nvml(is_cut=False)).open(Device(uuid="GPU-1"), 101)


def test_a_machine_serves_on_gpus_that_are_not_cut_and_on_instances() -> None:
    assert [one.uuid for one in GpuDriver(Nvml()).devices()] == ["GPU-0", "MIG-1.0", "MIG-1.2", "MIG-1.5"]
    assert GpuDriver(Nvml()).capabilities().problem == ""
    assert GpuDriver(Nvml(0)).capabilities().problem == "NVIDIA's driver finds no GPU, and no instance of one"
    assert GpuDriver(Nvml(-1)).capabilities().problem.startswith("libnvidia-ml.so.1: Driver Not Loaded")


@pytest.mark.parametrize(("pid", "used_bytes"), [(7, 3 << 20), (8, None), (9, None), (10, 5 << 20)], ids=str)
def test_memory_that_nvidias_driver_does_not_count_is_not_known(pid: int, used_bytes: int | None) -> None:
    """The tenth is a client of MPS."""
    assert GpuDriver(Nvml()).process_bytes(Device(), pid) == used_bytes


class SecretiveNvml(Nvml):
    """This user may not see processes, and the driver is too old to know those of MPS."""

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        raise NVMLError("Insufficient Permissions")

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        raise NVMLError("Function Not Found")


def test_where_nvidias_driver_refuses_to_tell_memory_it_is_not_known() -> None:
    driver = GpuDriver(SecretiveNvml())

    assert driver.process_bytes(Device(), 7) is None
    with pytest.raises(Unavailable, match="GPU 9: NVIDIA's driver answers Invalid Argument"):
        driver.process_bytes(Device(number=9), 7)


class OnCores(GpuDriver):
    """Has executors compute on the processor, as this machine's frameworks do."""

    def open(self, device: Device, part_pct: int) -> FixedPlace:
        place = super().open(device, part_pct)
        return FixedPlace(part_pct, msgspec.structs.replace(place.entry, computes_on="cpu"))


def variables_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


@in_loop
async def test_an_executor_of_a_lease_is_on_the_gpu_that_the_lease_has(tmp_path: Path) -> None:
    models = small_models(tmp_path)
    for visible, name in (("MIG-1.2", "NVIDIA A100 MIG 3g.20gb"), ("GPU-0", "NVIDIA A100")):
        worker, front = Worker(KEY, {"gpu": OnCores(Nvml())}, gpus=visible), Front()
        server = await asyncio.start_server(worker.connected, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1], KEY)

        executor = await front.start(address, models, RemotePart("gpu", Device(), 100, name))

        assert f"CUDA_VISIBLE_DEVICES={visible}" in variables_of(executor.pid)
        executor.run(1, "mlp", 2, 0)
        assert (await front.done()).problem == ""
        with pytest.raises(ServeError, match=r"the device here is NVIDIA A100.*, and the profile is of NVIDIA H100"):
            await Front().start(address, models, RemotePart("gpu", Device(), 100, "NVIDIA H100"))
        await executor.close()
        server.close()


@in_loop
async def test_a_worker_from_which_all_gpus_are_hidden_takes_none(tmp_path: Path) -> None:
    worker = Worker(KEY, {"gpu": OnCores(Nvml())}, gpus="")
    server = await asyncio.start_server(worker.connected, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1], KEY)

    with pytest.raises(ServeError, match="CUDA_VISIBLE_DEVICES is empty: it hides all GPUs"):
        await Front().start(address, small_models(tmp_path), RemotePart("gpu", Device(), 100, "NVIDIA A100"))
    server.close()


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


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript's own
@pytest.mark.parametrize("name", ["green", "mps", "mig", "gpu"])
def test_on_a_gpu_an_executor_computes_in_a_part(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    driver = DRIVERS[name]()
    found = driver.capabilities()
    if found.problem or not torch.cuda.is_available():
        pytest.skip(found.problem or "this PyTorch sees no GPU")
    part = {"mig": found.parts.split()[0], "gpu": "100"}.get(name, "50")
    path = tmp_path / "net.pt"
    told = json.dumps([{"name": "input", "datatype": "FP32", "shape": [64]}])
    torch.jit.save(torch.jit.script(torch.nn.Linear(64, 32)), str(path), _extra_files={"inputs.json": told})
    module = torch.jit.load(str(path))
    given = np.random.default_rng(1).random((4, 64), np.float32)

    async def test() -> None:
        watched = Watched()
        model = describe(ModelRequest(name="net", path=str(path), max_batch=4))
        executor = await watched.start([model], driver.open(Device(), int(part)))
        executor.slot_inputs("net", 0)["input"][:] = given
        executor.run(1, "net", 4, 0)
        assert (await watched.done()).problem == ""
        with torch.inference_mode():
            wanted = module(torch.from_numpy(given)).numpy()
        np.testing.assert_allclose(executor.slot_outputs("net", 0)["OUTPUT__0"], wanted, rtol=1e-3, atol=1e-3)
        if name != "mps":  # of whose clients the driver may count nothing
            assert driver.process_bytes(Device(), executor.pid)
        await executor.close()

    asyncio.run(test())


@pytest.mark.gpu
def test_on_a_gpu_kernels_of_two_parts_run_on_sms_of_their_own() -> None:
    driver = DRIVERS["green"]()
    if problem := driver.capabilities().problem:
        pytest.skip(problem)
    from benchmarks.serving.on_gpu import CUTS, seen_sms

    for (small, large), (one, other) in zip(CUTS, asyncio.run(seen_sms()), strict=True):
        assert one
        assert other
        assert not one & other
        assert (len(one) < len(other)) == (small < large)
