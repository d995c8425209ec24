"""What the node has and how busy it is."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.sense.gpu import DeclaredGpus, NvmlGpus, open_gpus
from farside.agent.sense.headroom import headroom_bytes, promised_bytes
from farside.agent.sense.node import healthy, lent_of
from farside.agent.sense.pressure import read_psi
from farside.agent.sense.usage import Usage, usage_below
from farside.errors import Unavailable

GIB = 1 << 30


class FakeNvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """pynvml as far as it is used: two GPUs whose answers a test sets."""

    NVMLError = FakeNvmlError
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - NVIDIA's name

    def __init__(self) -> None:
        self.ecc: dict[int, int | FakeNvmlError] = {0: 0, 1: 0}
        self.xids: list[tuple[int, int]] = []
        self.has_power = True
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=140 * GIB, used=handle * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=37)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if not self.has_power:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return 71_500

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:  # noqa: N802
        found = self.ecc[handle]
        if isinstance(found, FakeNvmlError):
            raise found
        return found

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: object) -> None:  # noqa: N802
        pass

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:  # noqa: N802
        if not self.xids:
            raise FakeNvmlError(10)
        device, xid = self.xids.pop(0)
        return SimpleNamespace(device=device, eventData=xid)


def test_gpus_are_read_by_nvml() -> None:
    sense = NvmlGpus(FakeNvml())

    assert sense.read()[1] == m.Gpu(
        index=1,
        model="NVIDIA H200",
        healthy=True,
        memory_bytes=140 * GIB,
        memory_used_bytes=GIB,
        busy_pct=37.0,
        power_w=71.5,
    )


def test_what_a_gpu_does_not_tell_is_left_open() -> None:
    nvml = FakeNvml()
    nvml.has_power = False

    assert NvmlGpus(nvml).read()[0].power_w is None


@pytest.mark.parametrize(
    ("ecc", "reason"), [(3, "3 uncorrectable memory errors"), (FakeNvmlError(15), "the driver lost it")]
)
def test_a_gpu_with_memory_errors_or_none_at_all_is_not_healthy(ecc: Any, reason: str) -> None:
    nvml = FakeNvml()
    nvml.ecc[1] = ecc

    gpus = NvmlGpus(nvml).read()

    assert [(gpu.healthy, gpu.reason) for gpu in gpus] == [(True, ""), (False, reason)]
    assert healthy(gpus) == {0}


def test_a_gpu_without_error_counters_is_healthy() -> None:
    nvml = FakeNvml()
    nvml.ecc[0] = FakeNvmlError(nvml.NVML_ERROR_NOT_SUPPORTED)

    assert NvmlGpus(nvml).read()[0].healthy


def test_a_critical_error_is_remembered_and_a_program_s_own_is_not() -> None:
    nvml = FakeNvml()
    sense = NvmlGpus(nvml)
    nvml.xids = [(0, 31), (1, 79), (0, 13)]

    sense.read()

    assert [(gpu.healthy, gpu.reason) for gpu in sense.read()] == [(True, ""), (False, "XID 79")]


def test_no_driver_is_unavailable() -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise FakeNvmlError(9)

    with pytest.raises(Unavailable, match="NVML: code 9; set declared_gpus"):
        NvmlGpus(NoDriver())


def test_declared_gpus_are_as_the_settings_say() -> None:
    gpus = open_gpus(declared=2, model="a100").read()

    assert gpus == (m.Gpu(index=0, model="a100", healthy=True), m.Gpu(index=1, model="a100", healthy=True))


def test_without_a_driver_there_are_no_gpus() -> None:
    sense = open_gpus(declared=-1, model="")
    if not isinstance(sense, DeclaredGpus):
        pytest.skip("this machine has GPUs")

    assert sense.read() == ()


def test_pressure_is_read_where_the_kernel_tells_it(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    lines = "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=1\n"
    (tmp_path / "pressure" / "memory").write_text(lines)
    (tmp_path / "pressure" / "cpu").write_text("nonsense\n")

    assert read_psi(tmp_path) == m.Psi(memory_some_pct=1.5, memory_full_pct=0.25)


def test_lent_memory_counts_as_free_and_promises_do_not() -> None:
    found = headroom_bytes(
        total_bytes=64 * GIB,
        available_bytes=20 * GIB,
        lent_bytes=30 * GIB,
        reserve_bytes=4 * GIB,
        promised_bytes=6 * GIB,
    )

    assert found == 40 * GIB


@given(*[st.integers(0, 1 << 40)] * 5)
def test_headroom_is_between_nothing_and_the_machine(
    total: int, available: int, lent: int, reserve: int, promised: int
) -> None:
    found = headroom_bytes(
        total_bytes=total,
        available_bytes=available,
        lent_bytes=lent,
        reserve_bytes=reserve,
        promised_bytes=promised,
    )

    assert 0 <= found <= total


def test_a_task_over_its_limit_or_without_one_promises_nothing() -> None:
    assert promised_bytes([(10, 4), (10, 12), (0, 5)]) == 6


def test_what_runs_below_a_process_is_its_task_s_usage() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        used = usage_below(os.getpid())
        child.kill()

    assert used.rss_bytes > 0


def test_nobody_uses_nothing() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()

    assert usage_below(child.pid) == Usage()


def test_of_a_donor_s_borrowers_those_with_the_most_memory_are_told() -> None:
    sessions = [{"borrower": f"b{count}", "connected": True, "silent_s": 0.0, "slabs": count} for count in range(70)]
    told = {"slab_bytes": 1 << 26, "memory": {"slabs_bytes": 99}, "sessions": sessions}

    lent = lent_of(told)

    assert lent.slabs_bytes == 99
    assert len(lent.loans) == m.LOANS_MAX
    assert lent.loans[0] == m.Loan(borrower="b69", bytes=69 << 26)
    assert all(loan.bytes for loan in lent.loans)
