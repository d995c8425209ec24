"""Drivers of GPU parts: with a stand-in for NVIDIA's library and its control program, and on a GPU if there is one."""

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from farside.agent.serving.describe import ModelRequest, describe
from farside.agent.serving.partition.catalog import DRIVERS
from farside.agent.serving.partition.green import GreenDriver
from farside.agent.serving.partition.mig import MigDriver
from farside.agent.serving.partition.mps import CONTROL, MpsDriver
from farside.agent.serving.partition.policy import Device
from farside.errors import Unavailable
from farside.serve.sample_models import make_models
from tests.serving.executors import Watched
from tests.support.waiting import text_of, until

# A control daemon that says with what it was started, and ends when it is told to.
PROGRAM = """#!{python}
import json, os, sys, time
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
if sys.argv[1:] == ["-f"]:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_LOG_DIRECTORY")
    with open("{seen}", "a") as file:
        file.write(json.dumps([folder, *[os.environ[name] for name in names]]) + "\\n")
    while not os.path.exists(folder + "/quit"):
        time.sleep(0.01)
else:
    open(folder + "/quit", "w").write(sys.stdin.read())
"""


class NVMLError(Exception):
    pass


class Nvml:
    """A machine with two GPUs, the second one cut into instances of 3, 3 and 1 sevenths."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self, gpus: int = 2) -> None:
        self._gpus = gpus

    def nvmlInit(self) -> None:  # noqa: N802
        if self._gpus < 0:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index >= self._gpus:
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA A100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=40 << 30)

    def nvmlDeviceGetUUID(self, handle: object) -> str:  # noqa: N802
        return f"MIG-{handle}" if isinstance(handle, str) else f"GPU-{handle}"

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (handle, handle)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, at: int) -> str:  # noqa: N802
        if at not in (0, 2, 5):
            raise NVMLError("Not Found")
        return f"{handle}.{at}"

    def nvmlDeviceGetAttributes_v2(self, instance: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpuInstanceSliceCount=1 if instance.endswith("5") else 3)


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


def test_mps_has_a_daemon_of_its_own_for_each_gpu_until_its_last_part_is_closed(control: Path) -> None:
    driver = MpsDriver(Nvml())
    first, second, other = (driver.open(Device(number=gpu), part) for gpu, part in ((0, 30), (0, 70), (1, 100)))
    lines = until(lambda: two_lines(control), what="both daemons have started")
    started = sorted((json.loads(line) for line in lines), key=lambda one: str(one[1]))

    other_folder = other.entry.environment["CUDA_MPS_PIPE_DIRECTORY"]
    folder = first.entry.environment["CUDA_MPS_PIPE_DIRECTORY"]
    assert second.entry.environment["CUDA_MPS_PIPE_DIRECTORY"] == folder
    assert started == [[folder, "GPU-0", folder], [other_folder, "GPU-1", other_folder]]
    assert first.entry.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert second.entry.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "70"
    first.close()
    assert Path(folder).exists()
    second.close()
    assert not Path(folder).exists()
    other.close()


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


def test_green_contexts_are_refused_with_what_to_use() -> None:
    assert GreenDriver().capabilities().problem.endswith("use mps or mig")
    with pytest.raises(Unavailable, match="within one process"):
        GreenDriver().open(Device(), 50)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mps", "mig"])
def test_on_a_gpu_an_executor_computes_in_a_part(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime-gpu")
    driver = DRIVERS[name]()
    found = driver.capabilities()
    if found.problem or "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip(found.problem or "this onnxruntime has no CUDAExecutionProvider")
    (path,) = make_models(tmp_path, ("mlp",), size=0.02)
    part = 50 if name == "mps" else int(found.parts.split()[0])

    async def test() -> None:
        watched = Watched()
        model = describe(ModelRequest(name="mlp", path=str(path), max_batch=4))
        executor = await watched.start([model], driver.open(Device(), part))
        executor.run(1, "mlp", 4, 0)
        assert (await watched.done()).problem == ""
        assert driver.process_bytes(Device(), executor.pid) > 0
        await executor.close()

    asyncio.run(test())
