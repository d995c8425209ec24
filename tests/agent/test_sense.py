"""What the node has and how busy it is."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside import admin
from farside.agent import messages as m
from farside.agent.gpu_share import Device
from farside.agent.sense.gpu import DeclaredGpus, NvmlGpus, open_gpus
from farside.agent.sense.growth import HourlyGrowth
from farside.agent.sense.headroom import headroom_bytes, promised_bytes
from farside.agent.sense.links import LinkSense
from farside.agent.sense.node import healthy, read_beside
from farside.agent.sense.pressure import read_psi
from farside.agent.sense.swap import read_farside_swap
from farside.agent.sense.usage import rss_below
from farside.agent.service.donor import GONE_S, DonorSense, lent_of
from farside.errors import Unavailable
from tests.agent.donor import DONOR
from tests.support.virtual_clock import VirtualClock

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
    NVML_NVLINK_MAX_LINKS = 36
    NVML_NVLINK_ERROR_DL_REPLAY = 0
    NVML_NVLINK_ERROR_DL_RECOVERY = 1
    NVML_NVLINK_ERROR_DL_CRC_FLIT = 2

    def __init__(self) -> None:
        self.links: dict[tuple[int, int], bool] = {}  # whether it is active, by GPU and link
        self.link_errors: dict[tuple[int, int, int], int] = {}  # by GPU, link and kind
        self.ecc: dict[int, int | FakeNvmlError] = {0: 0, 1: 0}
        self.xids: list[tuple[int, int]] = []
        self.has_power = True
        self.tells_files = True
        self.is_open = False
        self.instances: dict[int, list[str | None]] = {}  # of GPUs in MIG mode, by place

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

    def nvmlDeviceGetUUID(self, handle: int | str) -> str:  # noqa: N802
        return f"GPU-{handle}" if isinstance(handle, int) else f"MIG-{handle}"

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        if not self.instances:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return int(handle in self.instances), 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return len(self.instances[handle])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, at: int) -> str:  # noqa: N802
        if (found := self.instances[handle][at]) is None:
            raise FakeNvmlError(6)  # none at this place
        return found

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:  # noqa: N802
        if not self.tells_files:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return 1 - handle

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(domain=0, bus=0x3B + handle, device=0)

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

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        if (handle, link) not in self.links:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return int(self.links[handle, link])

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:  # noqa: N802
        if (handle, link, counter) not in self.link_errors:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return self.link_errors[handle, link, counter]

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
        uuid="GPU-1",
    )


def test_a_gpu_in_mig_mode_is_as_many_devices_as_it_has_instances() -> None:
    nvml = FakeNvml()
    nvml.instances[1] = ["a", None, "b"]
    sense = NvmlGpus(nvml)
    cut = sense.read()
    nvml.instances[1] = ["c"]  # an administrator has cut it anew
    anew = sense.read()
    nvml.instances[1] = [None]

    assert healthy(cut) == {Device(0), Device(1, "MIG-a"), Device(1, "MIG-b")}
    assert healthy(anew) == {Device(0), Device(1, "MIG-c")}
    assert [(gpu.healthy, gpu.reason) for gpu in sense.read()] == [
        (True, ""),
        (False, "it is in MIG mode and has no instances"),
    ]


def test_a_gpus_files_are_nvidias_and_those_for_graphics(tmp_path: Path) -> None:
    for bus, names in (("0000:3b:00.0", {"card0": "226:0", "renderD128": "226:128"}), ("0000:3c:00.0", {})):
        for name, number in names.items():
            (tmp_path / bus / "drm" / name).mkdir(parents=True)
            (tmp_path / bus / "drm" / name / "dev").write_text(f"{number}\n")

    files = NvmlGpus(FakeNvml(), devices_root=tmp_path).files
    first, second, none = files.rules([0]), files.rules([1]), files.rules([])

    assert not files.problem
    assert files.names == {0: "GPU-0", 1: "GPU-1"}
    # Each has its own alone; nvidiactl (255) and other drivers are everybody's.
    numbers = [(195, 0), (195, 1), (195, 7), (195, 255), (226, 0), (226, 128), (226, 1), (1, 3)]
    told = [[rules.allows(*number) for number in numbers] for rules in (first, second, none)]
    assert told == [
        [False, True, False, True, True, True, True, True],
        [True, False, False, True, False, False, True, True],
        [False, False, False, True, False, False, True, True],
    ]


def test_gpus_whose_files_are_not_told_cannot_be_fenced() -> None:
    nvml = FakeNvml()
    nvml.tells_files = False

    assert "device file and UUID of GPU 0" in NvmlGpus(nvml).files.problem


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
    assert healthy(gpus) == {Device(0)}


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


class LinkedGpus:
    """Two GPUs with two NVLinks each, of which the second leads nowhere. There were errors before the agent started."""

    def __init__(self, errors_per_hour: int = 100) -> None:
        self.nvml, self.now_s = FakeNvml(), 0.0
        self.nvml.links = {(gpu, link): link == 0 for gpu in (0, 1) for link in (0, 1)}
        self.nvml.link_errors = {(gpu, 0, kind): 5000 for gpu in (0, 1) for kind in (0, 1, 2)}
        self.sense = NvmlGpus(self.nvml, nvlink_errors_per_hour=errors_per_hour, now_s=lambda: self.now_s)
        assert self.reasons() == ["", ""]

    def reasons(self) -> list[str]:
        self.now_s += 60.0
        return [gpu.reason for gpu in self.sense.read()]


def test_a_gpu_whose_nvlinks_have_too_many_errors_within_an_hour_is_not_healthy() -> None:
    gpus = LinkedGpus()
    gpus.nvml.link_errors[1, 0, 0] += 60
    before = gpus.reasons()

    gpus.nvml.link_errors[1, 0, 2] += 41

    assert before == ["", ""]
    assert gpus.reasons() == ["", "NVLink: 101 errors within an hour (60 replay on link 0, 41 CRC on link 0)"]
    assert [gpu.healthy for gpu in gpus.sense.read()] == [True, False]


def test_a_gpu_with_a_few_nvlink_errors_each_hour_is_healthy() -> None:
    gpus = LinkedGpus()

    for _ in range(5 * 60):
        gpus.nvml.link_errors[0, 0, 0] += 1
        assert gpus.reasons() == ["", ""]


def test_an_nvlink_that_worked_and_is_down_makes_its_gpu_unfit_and_one_that_leads_nowhere_does_not() -> None:
    gpus = LinkedGpus()

    gpus.nvml.links[0, 0] = False

    assert gpus.reasons() == ["NVLink 0: down", ""]


@pytest.mark.parametrize("errors_per_hour", [0, 100])
def test_nvlinks_that_nobody_watches_or_that_tell_nothing_make_no_gpu_unfit(errors_per_hour: int) -> None:
    gpus = LinkedGpus(errors_per_hour)
    gpus.nvml.link_errors = dict.fromkeys(gpus.nvml.link_errors, 9000) if not errors_per_hour else {}
    gpus.nvml.links = {}

    assert gpus.reasons() == ["", ""]


@given(st.lists(st.integers(0, 1000), min_size=1))
def test_errors_that_are_counted_anew_are_never_fewer_than_none(counts: list[int]) -> None:
    growth = HourlyGrowth()

    for at, count in enumerate(counts):
        grown = growth.of({"symbol_error": count}, at * 60.0)
        assert grown.get("symbol_error", 0) <= sum(counts[: at + 1])
        assert all(more > 0 for more in grown.values())


@pytest.mark.parametrize("begin_s", [0.0, 200.0, 3599.0])
def test_errors_are_counted_over_the_hour_before_whenever_it_begins(begin_s: float) -> None:
    growth = HourlyGrowth()

    counted = [dict(growth.of({"symbol_error": at * 10}, begin_s + at * 300.0)) for at in range(40)]

    assert counted[:3] == [{}, {"symbol_error": 10}, {"symbol_error": 20}]
    assert counted[12:] == [{"symbol_error": 120}] * 28
    assert growth.of({"symbol_error": 390}, begin_s + 40 * 300.0 + 3600.0) == {}


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


def test_what_runs_below_a_process_is_its_task_s_memory() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        used = rss_below(os.getpid())
        child.kill()

    assert used > 0


def test_nobody_uses_nothing() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()

    assert rss_below(child.pid) == 0


def test_of_a_donor_s_borrowers_those_with_the_most_memory_are_told() -> None:
    lent = lent_of(DONOR)

    assert lent.slabs_bytes == 99
    assert len(lent.loans) == m.LOANS_MAX
    assert lent.loans[0] == m.Loan(borrower="b69", bytes=69 << 26, slabs=69)
    assert all(loan.bytes for loan in lent.loans)


def test_a_donor_is_told_of_where_other_nodes_reach_it() -> None:
    told, set_otherwise = lent_of(DONOR).donor, lent_of(DONOR, "tcp:10.9.0.7:1").donor

    assert told is not None
    assert set_otherwise is not None
    assert (told.node, told.control, told.has_rdma, told.lends) == ("d1", "tcp:0.0.0.0:7677", True, True)
    assert (told.free_bytes, told.lent_bytes) == (3 << 26, sum(range(70)) << 26)
    assert set_otherwise.control == "tcp:10.9.0.7:1"


@pytest.mark.parametrize("listen", [{"listen": ["unix:/run/d.sock"]}, {"listen": []}])
def test_a_donor_that_only_its_own_machine_reaches_is_not_told_of(listen: dict[str, Any]) -> None:
    assert lent_of({**DONOR, **listen}).donor is None


def test_a_donor_of_an_older_version_which_says_not_where_it_listens_is_none_unless_the_settings_do() -> None:
    older = {name: value for name, value in DONOR.items() if name not in ("listen", "has_rdma")}

    assert lent_of(older).donor is None
    assert lent_of(older, "tcp:10.9.0.7:1").donor == lent_of({**DONOR, "has_rdma": False}, "tcp:10.9.0.7:1").donor


@pytest.mark.parametrize("end", ["closing", "draining"])
def test_a_donor_that_takes_no_borrower_any_more_says_so(end: str) -> None:
    donor = lent_of({**DONOR, end: True}).donor

    assert donor is not None
    assert not donor.lends


def test_a_donor_that_is_restarted_stays_one_that_lends_nothing_and_one_that_stays_away_is_none(tmp_path: Path) -> None:
    async def told(_: object) -> object:
        return DONOR

    async def run() -> list[m.Donor | None]:
        clock = VirtualClock()
        sense = DonorSense(tmp_path / "d.sock", control="", clock=clock)
        seen = [(await sense.read()).donor]
        async with admin.serve(tmp_path / "d.sock", {"status": told}):
            seen.append((await sense.read()).donor)
        seen.append((await sense.read()).donor)
        await clock.advance(GONE_S + 1)
        seen.append((await sense.read()).donor)
        return seen

    before, there, away, gone = asyncio.run(run())

    assert before is None
    assert there is not None
    assert away is not None
    assert (there.lends, there.control) == (True, "tcp:0.0.0.0:7677")
    assert (away.lends, away.control, away.free_bytes) == (False, "tcp:0.0.0.0:7677", 0)
    assert gone is None


# ---- Farside swap


def machine(root: Path, *, backend: str = "farside:swap0", device: str = "/dev/nbd0") -> Path:
    (root / "proc").mkdir()
    lines = ["Filename Type Size Used Priority", f"{device} partition 1048576 2048 100", "/dev/sda2 partition 999 9 -2"]
    (root / "proc/swaps").write_text("\n".join(lines) + "\n")
    (root / "sys/block/nbd0").mkdir(parents=True)
    (root / "sys/block/nbd0/backend").write_text(backend + "\n")
    return root


def test_swap_on_a_farside_device_is_told_and_other_swap_is_not(tmp_path: Path) -> None:
    assert read_farside_swap(machine(tmp_path)) == m.Swap(size_bytes=1 << 30, used_bytes=2 << 20, own_bytes=2 << 20)


def test_of_the_swap_that_is_used_what_no_task_has_swapped_out_is_the_nodes_own(tmp_path: Path) -> None:
    plain, scope, ended, whole = (tmp_path / name for name in ("a", "b.scope/task", "gone", "c"))
    for folder, swapped in ((plain, 1 << 20), (scope.parent, 512 << 10), (whole, 5 << 20)):
        folder.mkdir()
        (folder / "memory.swap.current").write_text(f"{swapped}\n")
    root = machine(tmp_path)

    some, all_of_it = read_farside_swap(root, [plain, scope, ended]), read_farside_swap(root, [whole])

    assert some is not None
    assert all_of_it is not None
    assert (some.used_bytes, some.own_bytes) == (2 << 20, 512 << 10)
    assert all_of_it.own_bytes == 0


@pytest.mark.parametrize("other", [{"backend": ""}, {"backend": "somebody"}, {"device": "/dev/zram0"}])
def test_swap_that_is_no_farside_device_is_none(tmp_path: Path, other: dict[str, str]) -> None:
    assert read_farside_swap(machine(tmp_path, **other)) is None


def test_a_kernel_without_swap_has_none(tmp_path: Path) -> None:
    assert read_farside_swap(tmp_path) is None


def port(root: Path, name: str, state: str) -> None:
    adapter, _, number = name.partition("/")
    folder = root / "sys/class/infiniband" / adapter / "ports" / number
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(f"{state}\n")


def counts(root: Path, **counters: int) -> None:
    folder = root / "sys/class/infiniband/mlx5_0/ports/1/counters"
    folder.mkdir(exist_ok=True)
    for name, count in counters.items():
        (folder / name).write_text(f"{count}\n")


def links_of(root: Path, *, errors_per_hour: int = 100, now_s: Callable[[], float] = lambda: 0.0) -> LinkSense:
    return LinkSense(root, errors_per_hour=errors_per_hour, now_s=now_s)


TOO_MANY = "port mlx5_0/1: 101 errors within an hour (61 symbol_error, 40 link_error_recovery)"


@pytest.mark.parametrize(("errors_per_hour", "told"), [(100, TOO_MANY), (0, "")])
def test_a_port_that_had_too_many_errors_within_an_hour_is_a_broken_link_until_the_agent_starts_anew(
    errors_per_hour: int, told: str, tmp_path: Path
) -> None:
    now_s = 0.0
    links = links_of(tmp_path, errors_per_hour=errors_per_hour, now_s=lambda: now_s)
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    counts(tmp_path, symbol_error=7000, link_error_recovery=0)
    seen = [links.read()]
    counts(tmp_path, symbol_error=7061, link_error_recovery=39)
    seen.append(links.read())
    counts(tmp_path, link_error_recovery=40)

    for later_s in (1800.0, 3600.0, 9000.0):  # a node that is drained has no traffic, and so no more errors
        now_s = later_s
        seen.append(links.read())
    port(tmp_path, "mlx5_0/1", "1: DOWN")
    seen.append(links.read())
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    seen.append(links.read())

    assert seen == ["", "", told, told, told, "port mlx5_0/1: DOWN", told]
    assert links_of(tmp_path, errors_per_hour=errors_per_hour).read() == ""


def test_a_counter_that_stands_at_its_maximum_is_said_once_until_it_is_set_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    links = links_of(tmp_path, errors_per_hour=10**6)
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    full = {
        "symbol_error": 65535, "port_rcv_errors": 65535, "link_error_recovery": 255, "local_link_integrity_errors": 15,
        "link_downed": 255,
    }  # fmt: skip
    said = []
    for found in ({**full, "symbol_error": 65534}, full, full, dict.fromkeys(full, 0), full):
        counts(tmp_path, **found)
        links.read()
        at_maximum = [record for record in caplog.records if "at its maximum" in record.message]
        said.append(sorted(vars(record)["farside_fields"]["counter"] for record in at_maximum))
        caplog.clear()

    assert said == [sorted(full.keys() - {"symbol_error"}), ["symbol_error"], [], [], sorted(full)]


def test_how_to_set_back_a_counter_at_its_maximum_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    counts(tmp_path, symbol_error=65535)

    links_of(tmp_path).read()

    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert line.message == "a port's error counter is at its maximum and counts no further errors"
    assert "perfquery -R -C mlx5_0 -P 1" in str(vars(line))


def test_errors_on_both_sides_of_a_full_hour_count_together(tmp_path: Path) -> None:
    now_s = 0.0
    links = links_of(tmp_path, now_s=lambda: now_s)
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    counts(tmp_path, symbol_error=0)
    links.read()
    for later_s, errors in ((3500.0, 60), (3600.0, 60), (3700.0, 101)):
        now_s = later_s
        counts(tmp_path, symbol_error=errors)
        told = links.read()

    assert told == "port mlx5_0/1: 101 errors within an hour (101 symbol_error)"


def test_a_port_that_was_down_between_two_looks_is_a_broken_link_and_one_seen_down_is_none_once_it_works(
    tmp_path: Path,
) -> None:
    links = links_of(tmp_path)
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    counts(tmp_path, link_downed=3)
    seen = [links.read()]
    counts(tmp_path, link_downed=4)
    seen.append(links.read())
    port(tmp_path, "mlx5_0/1", "1: DOWN")
    counts(tmp_path, link_downed=5)
    seen.append(links.read())
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    seen.append(links.read())

    assert seen == ["", "port mlx5_0/1: was down once within an hour", "port mlx5_0/1: DOWN", ""]


@pytest.mark.parametrize(
    ("downs", "told", "later"),
    [
        (2, "port mlx5_0/1: was down 2 times within an hour", ""),
        (3, "port mlx5_0/1: was down 3 times within an hour", "port mlx5_0/1: was down 3 times within an hour"),
    ],
)
def test_a_port_that_was_down_twice_works_again_after_an_hour_and_one_that_was_more_often_does_not(
    downs: int, told: str, later: str, tmp_path: Path
) -> None:
    now_s = 0.0
    links = links_of(tmp_path, now_s=lambda: now_s)
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    seen = []
    for at in range(downs + 1):
        now_s = at * 900.0
        counts(tmp_path, link_downed=at)
        seen.append(links.read())
    for _ in range(2):
        now_s += 3600.0
        seen.append(links.read())

    assert seen[downs:] == [told, later, later]


def test_a_port_that_comes_and_goes_is_a_broken_link_though_each_time_was_seen(tmp_path: Path) -> None:
    links = links_of(tmp_path)
    seen = []
    for downs in range(4):
        for state in ("1: DOWN", "4: ACTIVE") if downs else ("4: ACTIVE",):
            port(tmp_path, "mlx5_0/1", state)
            counts(tmp_path, link_downed=downs)
            seen.append(links.read())

    assert seen[:5] == ["", "port mlx5_0/1: DOWN", "", "port mlx5_0/1: DOWN", ""]
    assert seen[5:] == ["port mlx5_0/1: DOWN", "port mlx5_0/1: was down 3 times within an hour"]


def test_a_port_that_worked_and_does_no_more_is_a_broken_link_until_it_works_again(tmp_path: Path) -> None:
    links = links_of(tmp_path)
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    port(tmp_path, "mlx5_1/1", "4: ACTIVE")
    port(tmp_path, "mlx5_2/1", "1: DOWN")  # nobody has plugged it in
    before = links.read()

    port(tmp_path, "mlx5_0/1", "1: DOWN")
    shutil.rmtree(tmp_path / "sys/class/infiniband/mlx5_1")
    broken = links.read()
    port(tmp_path, "mlx5_0/1", "4: ACTIVE")
    port(tmp_path, "mlx5_1/1", "4: ACTIVE")

    assert (before, broken, links.read()) == ("", "port mlx5_0/1: DOWN, port mlx5_1/1: gone", "")


def test_a_node_without_rdma_adapters_has_no_broken_link(tmp_path: Path) -> None:
    assert links_of(tmp_path).read() == ""


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_reading_that_a_job_may_wait_for_does_not_wait_for_a_borrower_that_is_busy(before: bool, after: bool) -> None:
    is_urgent = before or after
    urgency = iter((before, after))
    reading = m.Reading(headroom_bytes=1, gpus=(), at_s=1.0, psi=m.Psi())
    said: list[str] = []

    async def run() -> m.Reading:
        answers = asyncio.Event()

        async def read() -> m.Reading:
            await asyncio.sleep(0)  # the look has begun
            if not is_urgent:
                answers.set()
            return reading

        async def look() -> None:
            await answers.wait()
            said.append("its figures")

        return await read_beside(read, look, is_urgent=lambda: next(urgency))

    assert asyncio.run(run()) is reading
    assert said == ([] if is_urgent else ["its figures"])
