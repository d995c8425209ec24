"""Drivers of GPU parts: with a stand-in for NVIDIA's library and its control program, and on a GPU if there is one."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from farside.agent.serving.describe import ModelRequest, describe
from farside.agent.serving.handle import ServeError
from farside.agent.serving.partition.catalog import DRIVERS
from farside.agent.serving.partition.fixed import FixedPlace
from farside.agent.serving.partition.gpu import GpuDriver
from farside.agent.serving.partition.mig import MigDriver
from farside.agent.serving.partition.mps import MpsDriver
from farside.agent.serving.partition.nvidia import gpu_named
from farside.agent.serving.partition.policy import Device
from farside.agent.serving.remote import Address, RemotePart
from farside.agent.serving.worker import Worker
from farside.errors import ConfigError, Unavailable
from tests.serving.executors import Watched, small_models
from tests.serving.front import in_loop
from tests.serving.nvidia_stand_in import Nvml, NVMLError
from tests.serving.test_worker import Front, one_key


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
    driver.check(gpu, 43)
    with pytest.raises(Unavailable, match="no free instance of 40 %"):
        driver.check(gpu, 40)
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
        worker, front = Worker(one_key, {"gpu": OnCores(Nvml())}, gpus=visible), Front()
        server = await asyncio.start_server(worker.connected, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1], one_key)

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
    worker = Worker(one_key, {"gpu": OnCores(Nvml())}, gpus="")
    server = await asyncio.start_server(worker.connected, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1], one_key)

    with pytest.raises(ServeError, match="CUDA_VISIBLE_DEVICES is empty: it hides all GPUs"):
        await Front().start(address, small_models(tmp_path), RemotePart("gpu", Device(), 100, "NVIDIA A100"))
    server.close()


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
