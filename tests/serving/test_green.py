"""Green contexts: one process of a GPU computes for all of its parts, each on SMs of its own."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.serving.executor import start_executor
from farside.agent.serving.handle import ServeError
from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.agent.serving.partition import green
from farside.agent.serving.partition.granules import assign, granules_of
from farside.agent.serving.partition.green import GreenDriver
from farside.agent.serving.partition.policy import Device
from farside.agent.serving.remote import Address, RemotePart
from farside.agent.serving.worker import Worker
from farside.errors import Unavailable
from tests.serving import green_stand_in
from tests.serving.executors import Watched
from tests.serving.front import in_loop
from tests.serving.green_stand_in import GRANULES, HANG_END_S
from tests.serving.nvidia_stand_in import Nvml
from tests.serving.test_worker import Front, one_key
from tests.support.waiting import DEADLINE_S, text_of, until

PROGRAM = (green_stand_in.__file__,)
GPU = Device(number=0)


def is_there(pid: int) -> bool:
    """Whether a process runs, or has ended and nobody has waited for it."""
    return Path(f"/proc/{pid}").exists()


class Ran(NamedTuple):
    """Where a batch was computed."""

    pid: int
    granules: range


class Part(Watched):
    """An executor that tells where it computes."""

    def __init__(self, folder: Path, name: str = "net") -> None:
        super().__init__()
        file = folder / f"{name}.pt"
        file.touch()
        self.model = ModelFile(
            name=name, path=str(file), framework="pytorch", inputs=(TensorSpec("input", "FP32", (1,)),),
            outputs=(TensorSpec("output", "INT64", (3,)),), max_batch=2,
        )  # fmt: skip
        self._batch = 0

    async def open(self, driver: GreenDriver, part_pct: int) -> "Part":
        await self.start([self.model], driver.open(GPU, part_pct))
        return self

    def ask(self, *, is_bad: bool = False) -> None:
        self._batch += 1
        self.executor.slot_inputs(self.model.name, 0)["input"][:] = int(is_bad)
        self.executor.run(self._batch, self.model.name, 1, 0)

    async def ran(self) -> Ran:
        self.ask()
        assert (await self.done()).problem == ""
        pid, start, stop = map(int, self.executor.slot_outputs(self.model.name, 0)["output"][0])
        return Ran(pid, range(start, stop))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> GreenDriver:
    monkeypatch.setattr(green, "is_installed", lambda module: True)
    return GreenDriver(Nvml(is_cut=False), PROGRAM)


# ---- which granules a part has

PARTS = st.lists(st.integers(1, 100), min_size=1, max_size=4)


@given(PARTS, st.integers(1, 40), st.data())
def test_parts_have_their_size_and_overlap_only_where_not_all_fit(
    sizes: list[int], total: int, data: st.DataObject
) -> None:
    before: dict[int, range] = {}
    for round_ in range(2):
        parts = list(enumerate(sizes))
        found = assign(parts, total, before)

        assert found.keys() == dict(parts).keys()
        for part, size in parts:
            assert len(found[part]) == granules_of(size, total) <= total
            assert 0 <= found[part].start < found[part].stop <= total
        used = sum(len(one) for one in found.values())
        if used <= total:
            assert len({at for one in found.values() for at in one}) == used
        assert assign(parts, total, found) == found
        before = found
        sizes = data.draw(PARTS) if round_ == 0 else sizes


@given(st.integers(1, 99), st.integers(2, 40))
def test_two_parts_of_a_whole_always_fit(size: int, total: int) -> None:
    found = assign([(1, size), (2, 100 - size)], total, {})

    assert not set(found[1]) & set(found[2])


def test_parts_of_a_new_plan_share_with_the_old_one_and_not_with_each_other() -> None:
    old = assign([(1, 60), (2, 40)], GRANULES, {})
    both = assign([(1, 60), (2, 40), (3, 40), (4, 60)], GRANULES, old)

    assert {part: both[part] for part in old} == old
    assert not set(both[3]) & set(both[4])
    assert assign([(3, 40), (4, 60)], GRANULES, both) == {3: both[3], 4: both[4]}


# ---- executors


@in_loop
async def test_parts_of_a_gpu_are_computed_by_one_process_on_granules_of_their_own(
    driver: GreenDriver, tmp_path: Path
) -> None:
    first, second = await Part(tmp_path).open(driver, 40), await Part(tmp_path).open(driver, 60)

    one, other = await first.ran(), await second.ran()

    assert one.pid == other.pid not in (first.executor.pid, second.executor.pid)
    assert (one.granules, other.granules) == (range(6), range(6, 15))
    await first.executor.close()
    await second.executor.close()
    until(lambda: not is_there(one.pid), what="the process has ended")


@in_loop
async def test_a_part_gets_another_size_under_its_executor(driver: GreenDriver, tmp_path: Path) -> None:
    first, second = await Part(tmp_path).open(driver, 40), await Part(tmp_path).open(driver, 60)
    before = await first.ran()

    assert await second.executor.resize(20)
    assert await first.executor.resize(80)

    one, other = await first.ran(), await second.ran()
    assert (len(one.granules), len(other.granules)) == (12, 3)
    assert not set(one.granules) & set(other.granules)
    assert one.pid == before.pid
    await second.executor.close()
    assert await first.executor.resize(100)
    assert (await first.ran()).granules == range(15)
    await first.executor.close()


@in_loop
async def test_an_executor_that_is_killed_harms_no_other_part(driver: GreenDriver, tmp_path: Path) -> None:
    first, second = await Part(tmp_path).open(driver, 40), await Part(tmp_path).open(driver, 60)
    before = await second.ran()

    os.kill(first.executor.pid, signal.SIGKILL)
    assert "SIGKILL" in (await first.ended()).line

    assert await second.ran() == before
    again = await Part(tmp_path).open(driver, 40)
    assert await again.ran() == Ran(before.pid, range(6))
    await again.executor.close()
    await second.executor.close()


@in_loop
async def test_when_the_process_of_a_gpu_dies_its_executors_end_and_the_next_have_a_new_one(
    driver: GreenDriver, tmp_path: Path
) -> None:
    first, second = await Part(tmp_path).open(driver, 40), await Part(tmp_path).open(driver, 60)
    before = await first.ran()

    os.kill(before.pid, signal.SIGKILL)
    for one in (first, second):
        assert "ended with 1" in (await one.ended()).line

    again = await Part(tmp_path).open(driver, 40)
    assert (await again.ran()).pid != before.pid
    await again.executor.close()


@in_loop
async def test_a_batch_that_hangs_ends_the_process_once_its_executor_is_killed(
    driver: GreenDriver, tmp_path: Path
) -> None:
    hangs, other = await Part(tmp_path, "hang").open(driver, 40), await Part(tmp_path).open(driver, 60)
    ran = await other.ran()
    before = text_of(tmp_path / "hang.pt")
    hangs.ask(is_bad=True)
    async with asyncio.timeout(DEADLINE_S):  # a batch that has not begun ends with its executor, and hangs nobody
        while text_of(tmp_path / "hang.pt") == before:
            await asyncio.sleep(0.01)

    hangs.executor.kill()

    assert "SIGKILL" in (await hangs.ended()).line
    assert "ended with 1" in (await other.ended()).line
    until(lambda: not is_there(ran.pid), what="the process has ended")


@in_loop
async def test_a_model_that_raises_is_told_and_one_that_breaks_the_gpu_ends_its_process(
    driver: GreenDriver, tmp_path: Path
) -> None:
    part = await Part(tmp_path).open(driver, 40)
    part.ask(is_bad=True)
    assert (await part.done()).problem == "a wrong shape"
    ran = await part.ran()

    breaks = await Part(tmp_path, "broken").open(driver, 60)
    breaks.ask(is_bad=True)

    # It is not tried again on the next process.
    assert (await breaks.done()).problem == "an illegal memory access"
    assert "ended with 1" in (await breaks.ended()).line
    assert "ended with 1" in (await part.ended()).line
    until(lambda: not is_there(ran.pid), what="the process has ended")


@in_loop
async def test_an_executor_that_can_not_start_leaves_nothing_of_its_part(driver: GreenDriver, tmp_path: Path) -> None:
    serves, absent = await Part(tmp_path).open(driver, 60), Part(tmp_path, "absent")
    pid = (await serves.ran()).pid
    with pytest.raises(ServeError, match="no such model"):
        await start_executor(driver.open(GPU, 40), [absent.model], print, print, prepare_pct=10)

    assert await serves.executor.resize(80)
    other = await Part(tmp_path).open(driver, 20)
    assert not set((await serves.ran()).granules) & set((await other.ran()).granules)
    await serves.executor.close()
    await other.executor.close()
    until(lambda: not is_there(pid), what="the process has ended")


@in_loop
async def test_an_executor_that_is_killed_while_it_loads_harms_no_other_part(
    driver: GreenDriver, tmp_path: Path
) -> None:
    serves, slow = await Part(tmp_path).open(driver, 60), Part(tmp_path, "slow")
    pid = (await serves.ran()).pid
    place = driver.open(GPU, 40)
    starting = asyncio.ensure_future(start_executor(place, [slow.model], print, print))
    async with asyncio.timeout(DEADLINE_S):
        while not text_of(tmp_path / "slow.pt"):
            await asyncio.sleep(0.01)

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    async with asyncio.timeout(DEADLINE_S):  # longer than a batch may take that hangs
        for _ in range(5):
            await asyncio.sleep(HANG_END_S)
            assert (await serves.ran()).pid == pid
    await serves.executor.close()


@in_loop
async def test_each_gpu_has_a_process_of_its_own(driver: GreenDriver, tmp_path: Path) -> None:
    parts = [Part(tmp_path), Part(tmp_path)]
    for number, part in enumerate(parts):
        await part.start([part.model], driver.open(Device(number=number), 40))

    first, second = [await part.ran() for part in parts]

    assert first.pid != second.pid
    assert first.granules == second.granules == range(6)
    for part in parts:
        await part.executor.close()


@in_loop
async def test_an_executor_of_a_lease_has_parts_too(driver: GreenDriver, tmp_path: Path) -> None:
    model = msgspec.structs.replace(Part(tmp_path).model, sha256=hashlib.sha256(b"").hexdigest())
    worker, front = Worker(one_key, {"green": driver}), Front()
    server = await asyncio.start_server(worker.connected, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1], one_key)
    executor = await front.start(address, (model,), RemotePart("green", GPU, 40, "NVIDIA A100"))

    assert await executor.resize(80)
    executor.run(1, "net", 1, 0)
    assert (await front.done()).problem == ""
    assert list(executor.slot_outputs("net", 0)["output"][0][1:]) == [0, 12]
    await executor.close()
    server.close()


@in_loop
async def test_an_executor_that_loads_has_few_sms_until_it_is_ready(driver: GreenDriver, tmp_path: Path) -> None:
    part = Part(tmp_path)
    ends = Watched()
    executor = await start_executor(
        driver.open(GPU, 40), [part.model], part._done.put_nowait, ends._ended.put_nowait,
        p99_s={part.model.name: DEADLINE_S}, prepare_pct=10,
    )  # fmt: skip
    part.executor = executor

    warm_up = text_of(tmp_path / "net.pt").splitlines()
    assert warm_up
    assert set(warm_up) == {"0 1"}
    assert (await part.ran()).granules == range(6)
    await executor.close()


@in_loop
async def test_why_a_gpu_computes_nothing_is_told_by_each_executor(
    driver: GreenDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for why, line in (
        ("1", "PyTorch 2.13.0 sees no GPU; install"),
        ("busy", "CUDA error: all devices are busy Device"),
    ):
        monkeypatch.setenv("FARSIDE_TEST_NO_GPU", why)
        for _ in range(2):
            with pytest.raises(ServeError, match=f"did not become ready: {line}"):
                await Part(tmp_path).open(driver, 40)


# A front that has a part of a GPU, and says where.
FRONT = """
from farside.agent.serving.partition import green
from farside.agent.serving.partition.policy import Device
from tests.serving.nvidia_stand_in import Nvml
from tests.serving.test_green import PROGRAM
green.is_installed = lambda module: True
print(green.GreenDriver(Nvml(is_cut=False), PROGRAM).open(Device(), 50).entry.host, flush=True)
input()
"""


def test_the_last_part_of_a_gpu_leaves_no_folder(driver: GreenDriver) -> None:
    first, second = driver.open(GPU, 40), driver.open(GPU, 60)
    folder = Path(first.entry.host).parent

    first.close()
    assert folder.exists()
    second.close()

    assert not folder.exists()


def test_the_folder_of_a_front_that_is_killed_is_removed_by_the_next_one(driver: GreenDriver) -> None:
    front = subprocess.Popen([sys.executable, "-c", FRONT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with front:
        assert front.stdout is not None
        folder = Path(front.stdout.readline().strip()).parent
        driver.open(GPU, 50).close()
        assert folder.exists(), "its front is there"
        front.kill()

    driver.open(GPU, 50).close()

    assert not folder.exists()


@pytest.mark.parametrize(
    ("folder", "line"), [("absent", "No such file or directory"), ("long" * 40, "AF_UNIX path too long")]
)
def test_a_folder_without_room_for_its_socket_is_named(
    driver: GreenDriver, tmp_path: Path, folder: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if folder != "absent":
        (tmp_path / folder).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / folder))

    with pytest.raises(Unavailable, match=f"the process of GPU GPU-0 could not be started: .*{line}") as caught:
        driver.open(GPU, 40)
    assert caught.value.hint == f"look at {tmp_path / folder}, where its socket is to be"


# ---- what is missing


class Old(Nvml):
    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12040


@pytest.mark.parametrize(
    ("nvml", "absent", "line"),
    [
        (Nvml(-1), "", "libnvidia-ml.so.1: Driver Not Loaded; it comes with NVIDIA's driver"),
        (Nvml(0), "", "NVIDIA's driver finds no GPU that is not cut into instances"),
        (Old(1), "", "NVIDIA's driver knows CUDA 12.4, and streams of green contexts are of 12.5; install a newer"),
        (Nvml(1), "torch", "PyTorch is not installed; install PyTorch for CUDA, or use mps"),
        (Nvml(1), "cuda.bindings", "the Python package cuda-bindings is not installed"),
    ],
)
def test_what_is_missing_is_named(nvml: Nvml, absent: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(green, "is_installed", lambda module: module != absent)
    driver = GreenDriver(nvml, PROGRAM)

    assert driver.capabilities().problem.startswith(line)
    with pytest.raises(Unavailable, match=line.split(";", maxsplit=1)[0]):
        driver.open(GPU, 50)


@pytest.mark.parametrize(
    ("device", "part_pct", "line"),
    [
        (Device(number=0), 0, "GPU 0: has no part of 0 %; give 1 to 100"),
        (Device(number=0), 101, "GPU 0: has no part of 101 %"),
        (Device(number=1), 50, "GPU 1: is cut into instances"),
        (Device(uuid="MIG-1.0"), 50, "GPU MIG-1.0: an instance is not cut here; device = 'gpu' has it whole"),
    ],
)
def test_what_is_no_part_of_a_gpu_is_refused(
    device: Device, part_pct: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(green, "is_installed", lambda module: True)

    with pytest.raises(Unavailable, match=line):
        GreenDriver(Nvml(), PROGRAM).open(device, part_pct)
