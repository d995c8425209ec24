"""AMD's GPUs by amdsmi, with a stand-in for that module: what it tells, as version 7.0.2 says it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from farside.agent import messages as m
from farside.agent.sense.amd import MIB, AmdGpus
from farside.agent.sense.gpu import DeclaredGpus, open_gpus
from farside.errors import Unavailable
from tests.agent.test_sense import FakeNvml

NO_MODULE = cast(Any, None)
"""In `sys.modules`: it can't be imported."""


class FakeSmiError(Exception):
    pass


class FakeSmi:
    """Two GPUs, which HIP counts in another order than amdsmi; answers by function and handle, None: an error."""

    AmdSmiException = FakeSmiError

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.is_open = False
        self.told: dict[str, dict[int, Mapping[str, Any] | None]] = {
            "gpu_enumeration_info": {
                at: {
                    "drm_render": 129 - at, "drm_card": 1 - at, "hsa_id": 2 - at, "hip_id": 1 - at,
                    "hip_uuid": f"GPU-{at:016x}",
                }
                for at in range(2)
            },
            "gpu_asic_info": {at: {"market_name": "AMD Instinct MI300X"} for at in range(2)},
            "gpu_vram_usage": {at: {"vram_total": 196_592, "vram_used": 300 + at} for at in range(2)},
            "power_info": {at: {"current_socket_power": 140, "average_socket_power": "N/A"} for at in range(2)},
            "gpu_activity": {at: {"gfx_activity": 40 + at, "umc_activity": 3} for at in range(2)},
            "gpu_total_ecc_count": {at: {"correctable_count": 5, "uncorrectable_count": 0} for at in range(2)},
        }  # fmt: skip

    def amdsmi_init(self) -> None:
        self.is_open = True

    def amdsmi_shut_down(self) -> None:
        self.is_open = False

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [*range(self.count)]

    def __getattr__(self, name: str) -> Any:
        told = self.told.get(name.removeprefix("amdsmi_get_"))
        if told is None:
            raise AttributeError(name)
        answers = told

        def ask(handle: int) -> Mapping[str, Any]:
            if (found := answers[handle]) is None:
                raise FakeSmiError("AMDSMI_STATUS_NOT_SUPPORTED")
            return found

        return ask


def test_gpus_are_read_by_amdsmi_in_the_order_in_which_hip_counts_them() -> None:
    smi = FakeSmi()
    sense = AmdGpus(smi)

    first, second = sense.read()
    assert second == m.Gpu(
        index=1, model="AMD Instinct MI300X", healthy=True, uuid="GPU-0000000000000000", memory_bytes=196_592 * MIB,
        memory_used_bytes=300 * MIB, busy_pct=40.0, power_w=140.0,
    )  # fmt: skip
    assert (first.uuid, first.busy_pct) == ("GPU-0000000000000001", 41.0)
    assert sense.busy(["GPU-0000000000000001", "GPU-gone"]) == {"GPU-0000000000000001": 41.0}
    sense.close()
    assert not smi.is_open


@pytest.mark.parametrize("untold", [None, {}, {"figure": "N/A"}])
def test_what_a_gpu_does_not_tell_is_left_open(untold: Mapping[str, Any] | None) -> None:
    smi = FakeSmi()
    for name in smi.told.keys() - {"gpu_enumeration_info"}:
        smi.told[name][0] = untold

    assert AmdGpus(smi).read()[1] == m.Gpu(index=1, model="unknown", healthy=True, uuid="GPU-0000000000000000")


def test_a_figure_that_stands_for_none_is_left_out_and_the_other_power_counts() -> None:
    smi = FakeSmi()
    smi.told["power_info"] = {
        0: {"current_socket_power": 0xFFFFFFFF, "average_socket_power": 99},
        1: {"current_socket_power": "N/A", "average_socket_power": 0xFFFFFFFF},
    }
    smi.told["gpu_activity"][0] = {"gfx_activity": 0xFFFF}

    first, second = AmdGpus(smi).read()
    assert (first.power_w, second.power_w) == (None, 99.0)
    assert second.busy_pct is None


def test_a_gpu_with_memory_errors_is_not_healthy_from_then_on() -> None:
    smi = FakeSmi()
    sense = AmdGpus(smi)
    smi.told["gpu_total_ecc_count"][1] = {"uncorrectable_count": 2}
    sense.read()
    smi.told["gpu_total_ecc_count"][1] = None

    assert [(gpu.healthy, gpu.reason) for gpu in sense.read()] == [
        (False, "2 uncorrectable memory errors"),
        (True, ""),
    ]


def test_a_task_opens_its_own_gpus_files_and_counts_these_alone() -> None:
    files = AmdGpus(FakeSmi()).files
    rules = files.rules([1])

    assert not files.problem
    # Card and render node of each; /dev/kfd is everybody's.
    numbers = [(226, 0), (226, 128), (226, 1), (226, 129), (234, 0)]
    assert [rules.allows(*number) for number in numbers] == [False, False, True, True, True]
    assert (files.named([1]), files.named([1, 0]), files.named([])) == ({1: "0"}, {0: "0", 1: "1"}, {})


@pytest.mark.parametrize("version", ["an older one", "this one"])
def test_gpus_whose_files_are_not_told_cannot_be_fenced(version: str) -> None:
    smi = FakeSmi()
    if version == "this one":
        smi.told["gpu_enumeration_info"] = {0: None, 1: None}
    else:
        del smi.told["gpu_enumeration_info"]
    sense = AmdGpus(smi)

    assert "device file of GPU 0" in sense.files.problem
    assert [(gpu.model, gpu.uuid) for gpu in sense.read()] == [("AMD Instinct MI300X", None)] * 2


def test_without_a_gpu_there_is_none() -> None:
    with pytest.raises(Unavailable, match="amdsmi: it finds no GPU"):
        AmdGpus(FakeSmi(count=0))


# ---- where none is NVIDIA's


def no_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NO_MODULE)


def test_where_nvml_finds_nothing_amds_gpus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    no_nvidia(monkeypatch)
    monkeypatch.setitem(sys.modules, "amdsmi", cast(Any, FakeSmi()))

    assert [gpu.model for gpu in open_gpus(declared=-1, model="").read()] == ["AMD Instinct MI300X"] * 2


@pytest.mark.parametrize(
    ("package", "why"),
    [
        (None, "the Python package amdsmi is not installed"),
        ("raise KeyError('libamd_smi.so')", "the Python package amdsmi does not work: KeyError('libamd_smi.so')"),
    ],
)
def test_a_machine_whose_amd_gpus_are_not_found_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str | None, why: str
) -> None:
    no_nvidia(monkeypatch)
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "gpu_id").write_text("4711\n")
    if package is None:
        monkeypatch.setitem(sys.modules, "amdsmi", NO_MODULE)
    else:
        monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "amdsmi.py").write_text(f"print('no library')\n{package}\n")

    found = open_gpus(declared=-1, model="", root=tmp_path)

    assert isinstance(found, DeclaredGpus)
    assert found.unseen == f"AMD's driver has 1 GPU, and {why}; or name them by declared_gpus"
    assert capsys.readouterr().out == ""


# ---- drivers that have more than is shown


def drivers_have(root: Path, *, nvidia: int = 0, amd: int = 0, cpu_cores: int = 0) -> None:
    """The files by which the makers' drivers say what they have; AMD's GPUs are beside so many cores of a CPU."""
    for at in range(nvidia):
        (root / f"proc/driver/nvidia/gpus/0000:{at:02x}:00.0").mkdir(parents=True)
    for at in range(amd):
        node = root / f"sys/class/kfd/kfd/topology/nodes/{at}"
        node.mkdir(parents=True)
        (node / "gpu_id").write_text("4711\n")
        (node / "properties").write_text(f"cpu_cores_count {cpu_cores}\nsimd_count 320\n")


class EmptyNvml(FakeNvml):
    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 0


def test_an_nvml_that_lists_no_gpu_of_a_driver_that_has_some_is_told_of_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = EmptyNvml()
    monkeypatch.setitem(sys.modules, "pynvml", cast(Any, nvml))
    monkeypatch.setitem(sys.modules, "amdsmi", NO_MODULE)
    without = open_gpus(declared=-1, model="", root=tmp_path)
    drivers_have(tmp_path, nvidia=8)

    found = open_gpus(declared=-1, model="", root=tmp_path)

    assert (without.read(), without.unseen) == ((), "")
    assert (found.read(), found.unseen) == ((), "NVIDIA's driver has 8 GPUs, and NVML: it lists no GPU")
    assert not nvml.is_open


def test_where_nvml_lists_none_amds_gpus_are_shown_and_nvidias_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", cast(Any, EmptyNvml()))
    monkeypatch.setitem(sys.modules, "amdsmi", cast(Any, FakeSmi()))
    drivers_have(tmp_path, nvidia=1, amd=2)

    found = open_gpus(declared=-1, model="", root=tmp_path)

    assert [gpu.model for gpu in found.read()] == ["AMD Instinct MI300X"] * 2
    assert (found.told_by, found.unseen) == ("by amdsmi", "NVIDIA's driver has 1 GPU, and NVML: it lists no GPU")


@pytest.mark.parametrize(
    ("has", "unseen"),
    [
        ({"nvidia": 2}, ""),
        ({"nvidia": 2, "amd": 1, "cpu_cores": 16}, ""),  # within the CPU, for its display
        ({"nvidia": 3}, "NVIDIA's driver has 3 GPUs, and NVML lists 2"),
        (
            {"nvidia": 2, "amd": 4},
            "AMD's driver has 4 GPUs, and an agent shows the GPUs of one maker, here NVIDIA's;"
            " or name them by declared_gpus",
        ),
    ],
)
def test_gpus_beyond_those_that_nvml_lists_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: dict[str, int], unseen: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", cast(Any, FakeNvml()))
    drivers_have(tmp_path, **has)

    found = open_gpus(declared=-1, model="", root=tmp_path)

    assert [gpu.model for gpu in found.read()] == ["NVIDIA H200"] * 2
    assert (found.told_by, found.unseen) == ("by NVML", unseen)
