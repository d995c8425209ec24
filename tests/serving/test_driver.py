"""Partition drivers: real groups where this machine lets us make them."""

import asyncio
import os
from pathlib import Path

import pytest

from farside.agent.serving.executor import start_executor
from farside.agent.serving.partition import catalog
from farside.agent.serving.partition.catalog import ON_CORES, ON_GPU, find_driver
from farside.agent.serving.partition.cpu import CpuDriver, threads_of
from farside.agent.serving.partition.policy import Device
from farside.agent.serving.partition.whole import WholeDriver
from farside.agent.serving.remote import Address
from farside.errors import ConfigError, Unavailable
from farside.serve.site import LocalSite, RemoteSite
from tests.serving.executors import Watched, small_models

CORE = min(os.sched_getaffinity(0))
ANYWHERE = Address("127.0.0.1", 1, tuple)


@pytest.fixture
def driver() -> CpuDriver:
    driver = CpuDriver()
    if problem := driver.capabilities().problem:
        pytest.skip(f"no CPU quota here: {problem}")
    return driver


def pids(file: str) -> list[str]:
    return Path(file).read_text().split()


def text(place_file: str, name: str) -> str:
    return (Path(place_file).parent / name).read_text().strip()


def test_a_part_that_is_too_small_for_the_kernel_is_known_without_a_group() -> None:
    CpuDriver().check(Device(cores=(0,)), 12)
    with pytest.raises(Unavailable, match="11 % of its cores is a quota too small for the kernel; give parts of 12 %"):
        CpuDriver().check(Device(cores=(0,)), 11)


def test_a_part_is_a_quota_on_the_devices_cores_below_the_whole_device(driver: CpuDriver) -> None:
    place = driver.open(Device(cores=(CORE,)), 40)
    files = place.entry.files
    quota = next(one for one in files if "cpuset" not in one and "cpuacct" not in one)
    cores = next((one for one in files if (Path(one).parent / "cpuset.cpus").exists()), None)

    v1 = (Path(quota).parent / "cpu.cfs_quota_us").exists()
    if v1:
        assert (text(quota, "cpu.cfs_quota_us"), text(quota, "cpu.cfs_period_us")) == ("3600", "10000")
    else:
        assert text(quota, "cpu.max") == "3600 10000"
    assert cores is None or text(cores, "cpuset.cpus") == str(CORE)
    assert place.resize(80)
    assert place.part_pct == 80
    assert text(quota, "cpu.cfs_quota_us" if v1 else "cpu.max").split()[0] == "7200"
    burst = "cpu.cfs_burst_us" if v1 else "cpu.max.burst"
    if (Path(quota).parent / burst).exists():
        assert text(quota, burst) == "7200", "what it can't use in a period it may use in the next"
        assert place.resize(60)
        assert text(quota, burst) == "5400"
    place.close()
    assert not any(Path(one).parent.exists() for one in files)


def test_an_executor_that_loads_is_held_to_a_part_beside_what_the_others_have(
    driver: CpuDriver, tmp_path: Path
) -> None:
    (file,) = small_models(tmp_path)
    serving, place = (driver.open(Device(cores=(CORE,)), part) for part in (60, 40))
    quota = next(one for one in place.entry.files if "cpuset" not in one and "cpuacct" not in one)
    name = "cpu.cfs_quota_us" if (Path(quota).parent / "cpu.cfs_quota_us").exists() else "cpu.max"

    def quotas() -> tuple[int, int]:
        part, whole = Path(quota).parent / name, Path(quota).parent.parent / name
        return int(part.read_text().split()[0]), int(whole.read_text().split()[0])

    async def test() -> None:
        starting = asyncio.ensure_future(start_executor(place, (file,), lambda _: None, lambda _: None, prepare_pct=10))
        await asyncio.wait([starting], timeout=0.01)
        assert quotas() == (1000, 10_000), "the device has the 90 % of all parts, and these"
        executor = await starting
        assert quotas() == (3600, 9000)
        await executor.close()

    asyncio.run(test())
    assert place.hold(10) is False, "it was closed"
    serving.close()
    assert not Path(quota).parent.parent.exists()


def test_parts_of_one_device_are_closed_one_by_one(driver: CpuDriver) -> None:
    first, second = (driver.open(Device(cores=(CORE,)), part) for part in (60, 40))
    first.close()

    assert all(Path(one).exists() for one in second.entry.files)
    second.close()
    assert not any(Path(one).parent.parent.exists() for one in second.entry.files)


@pytest.mark.parametrize(
    ("device", "part", "line"),
    [
        (Device(cores=(CORE,)), 5, "5 % of its cores is a quota too small"),
        (Device(number=3), 50, "device 3: has no cores"),
        (Device(cores=(100_000,)), 50, "cpuset"),
    ],
)
def test_a_part_that_can_not_be_had_is_refused_and_leaves_no_group(
    driver: CpuDriver, device: Device, part: int, line: str
) -> None:
    with pytest.raises(Unavailable, match=line):
        driver.open(device, part)

    assert not list(Path("/sys/fs/cgroup").glob(f"*/farside-serve-{os.getpid()}-*"))


def test_an_executor_computes_within_its_part_and_is_counted_there(driver: CpuDriver, tmp_path: Path) -> None:
    models = small_models(tmp_path)

    async def test() -> None:
        watched = Watched()
        place = driver.open(Device(cores=(CORE,)), 60)
        executor = await watched.start(models, place)

        assert all(str(executor.pid) in pids(one) for one in place.entry.files)
        assert os.sched_getaffinity(executor.pid) == {CORE}
        loaded = executor.measured()
        assert loaded is not None
        assert loaded.device_s > 0
        assert await executor.resize(30)
        await executor.close()
        assert not any(Path(one).parent.exists() for one in place.entry.files)

    asyncio.run(test())


def test_groups_of_a_process_that_was_killed_are_removed_by_the_next(driver: CpuDriver) -> None:
    place = driver.open(Device(cores=(CORE,)), 50)
    gone = 2**22 - 1  # more than pid_max allows on this machine, or a process that is not there
    left = {Path(one).parent.parent for one in place.entry.files}
    # The number of one that lives may be that of another one before, as in a container.
    stale = [folder.parent / f"farside-serve-{pid}-1-0" for folder in left for pid in (gone, os.getpid())]
    for folder in stale:
        (folder / "part-1").mkdir(parents=True)
    CpuDriver().capabilities()

    assert not any(folder.exists() for folder in stale)
    assert all(folder.exists() for folder in left)
    place.close()


def test_a_second_thread_comes_with_more_than_half_of_two_cores() -> None:
    assert [threads_of(part, 2) for part in (20, 50, 60, 100)] == [1, 1, 2, 2]
    assert [threads_of(part, 1) for part in (20, 100)] == [1, 1]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Files of a machine with cgroup v2; a folder, unlike the kernel, makes no files of its own."""
    own = tmp_path / "sys/fs/cgroup/serve.service"
    own.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/serve.service\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    (own / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (own / "cgroup.subtree_control").write_text("")
    (own / "cgroup.type").write_text("domain\n")
    return tmp_path


def test_with_v2_the_front_moves_to_a_leaf_before_it_hands_controllers_down(machine: Path) -> None:
    own = machine / "sys/fs/cgroup/serve.service"

    assert CpuDriver(root=machine).capabilities().problem == ""
    assert (own / "farside-front/cgroup.procs").read_text() == "0"
    assert (own / "farside-front/cpu.weight").read_text() == "1000"  # before those of parts, which have 400 a core
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +cpuset"


def test_without_the_cpu_controller_the_driver_says_what_is_missing(machine: Path) -> None:
    (machine / "sys/fs/cgroup/serve.service/cgroup.controllers").write_text("memory\n")

    problem = CpuDriver(root=machine).capabilities().problem
    assert problem == f"no cgroup with the cpu controller is mounted below {machine}/sys/fs/cgroup"


def test_a_device_that_can_not_be_cut_is_had_whole_or_not_at_all() -> None:
    assert WholeDriver().open(Device(cores=(0, 1)), 100).entry.threads == 2
    with pytest.raises(Unavailable, match="no part of 40 %"):
        WholeDriver().open(Device(cores=(0,)), 40)


def test_an_unknown_driver_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no device driver tpu; choose auto, mps or cpu"):
        find_driver("tpu")


def test_auto_takes_a_driver_of_the_kind_of_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Works(WholeDriver):
        """Works everywhere."""

    monkeypatch.setattr(catalog, "DRIVERS", {"mps": Works, "whole": WholeDriver})

    assert find_driver("auto")[0] == "mps"
    assert find_driver("auto", ON_CORES)[0] == "whole"
    assert find_driver("auto", ON_GPU)[0] == "mps"


@pytest.mark.parametrize("name", sorted(catalog.DRIVERS))
def test_a_part_elsewhere_is_resized_where_its_driver_resizes_here(name: str) -> None:
    device = Device(cores=(CORE,))
    here, there = LocalSite(catalog.DRIVERS[name](), device), RemoteSite(ANYWHERE, name, device, None)

    assert there.can_resize(20, 40) == here.can_resize(20, 40) == (name in {"cpu", "green"})


def test_a_part_that_is_never_resized_is_never_held() -> None:
    place = WholeDriver().open(Device(cores=(CORE,)), 100)

    assert not WholeDriver.traits.can_resize
    assert not place.resize(50)
    assert not place.hold(50)
