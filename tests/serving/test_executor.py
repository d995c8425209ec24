"""An executor's process: batches through the arena, faults, and its end."""

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from farside.agent.serving.cuda import is_context_broken
from farside.agent.serving.executor import Executor, ServeError, start_executor
from farside.agent.serving.handle import BatchDone, ExecutorEnded
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Device, Entry
from farside.agent.serving.partition.whole import WholeDriver, WholePlace
from tests.serving.executors import Watched, answers, arenas, children, small_models
from tests.support.fault_executor import Faults
from tests.support.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFile, ...]:
    return small_models(tmp_path_factory.mktemp("models"), ("mlp", "lstm"))


def fill(executor: Executor, model: str, slot: int, rows: int, seed: int) -> dict[str, np.ndarray]:
    """Random rows in a slot, and what ONNX Runtime itself makes of them."""
    rng = np.random.default_rng(seed)
    given = {}
    for name, view in executor.slot_inputs(model, slot).items():
        given[name] = rng.standard_normal((rows, *view.shape[1:]), dtype=np.float32)
        view[:rows] = given[name]
    file = next(one for one in executor.models if one.name == model)
    return answers(file, given)


def test_batches_of_all_sizes_and_slots_come_back_as_the_runtime_itself_answers(models: tuple[ModelFile, ...]) -> None:
    async def test() -> None:
        watched = Watched()
        executor = await watched.start(models)
        for number in range(16):
            model, slot, rows = models[number % 2].name, number // 2 % 2, number % 4 + 1
            expected = fill(executor, model, slot, rows, number)
            executor.run(number, model, rows, slot)
            done = await watched.done()

            assert (done.batch, done.model, done.rows, done.slot, done.problem) == (number, model, rows, slot, "")
            assert done.started_ns < done.ended_ns
            for name, values in expected.items():
                np.testing.assert_allclose(
                    executor.slot_outputs(model, slot)[name][:rows], values, rtol=1e-5, atol=1e-6
                )
        await executor.close()

        assert (await watched.ended()).line == ""

    asyncio.run(test())


def test_one_batch_runs_and_one_is_staged_and_both_are_answered_in_order(models: tuple[ModelFile, ...]) -> None:
    async def test() -> None:
        watched = Watched()
        executor = await watched.start(models)
        executor.run(1, "mlp", 1, 0)
        executor.run(2, "mlp", 1, 1)

        assert (executor.in_flight, executor.can_take) == ((1, 2), False)
        assert [(await watched.done()).batch for _ in range(2)] == [1, 2]
        assert executor.can_take
        await executor.close()

    asyncio.run(test())


def test_closing_lets_what_runs_and_is_staged_end(models: tuple[ModelFile, ...], tmp_path: Path) -> None:
    async def test() -> None:
        watched, faults = Watched(), Faults(tmp_path / "faults")
        executor = await watched.start(models, program=faults.program)
        faults.arm("delay", delay_s=0.2)
        executor.run(1, "mlp", 1, 0)
        executor.run(2, "lstm", 1, 0)
        await executor.close(within_s=60)

        assert [(await watched.done()).problem for _ in range(2)] == ["", ""]
        assert (await watched.ended()).line == ""
        assert not is_there(executor.pid)

    asyncio.run(test())


def test_a_model_that_raises_answers_with_its_line_and_counts_as_failing_after_three(
    models: tuple[ModelFile, ...], tmp_path: Path
) -> None:
    async def test() -> None:
        watched, faults = Watched(), Faults(tmp_path / "faults")
        executor = await watched.start(models, program=faults.program)
        faults.arm("error", batches=3)
        failing = []
        for number in range(4):
            executor.run(number, "mlp", 1, 0)
            done = await watched.done()
            failing.append((done.problem, set(executor.failing)))
        await executor.close()

        line = "an error that a test asked for"
        assert failing == [(line, set()), (line, set()), (line, {"mlp"}), ("", set())]

    asyncio.run(test())


def test_an_executor_that_can_use_its_device_no_more_answers_its_batch_and_ends(
    models: tuple[ModelFile, ...], tmp_path: Path
) -> None:
    async def test() -> None:
        watched, faults = Watched(), Faults(tmp_path / "faults")
        executor = await watched.start(models, program=faults.program)
        faults.arm("broken")
        executor.run(1, "mlp", 1, 0)

        # It is not tried again: what broke one device would break the next.
        assert (await watched.done()).problem == "an error that a test asked for"
        assert (await watched.ended()).line == "its process ended with 3"
        await executor.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("answer", "is_broken"),
    [(0, False), (700, True), (719, True), (201, False), (3, False)],
    ids=["sound", "illegal address", "launch failed", "no context", "not initialised"],
)
def test_a_context_is_broken_where_the_driver_answers_an_error_once_nothing_runs(answer: int, is_broken: bool) -> None:
    assert is_context_broken(SimpleNamespace(cuCtxSynchronize=lambda: answer)) == is_broken


def test_a_batch_over_its_limit_gets_the_executor_killed_and_is_named_as_lost(
    models: tuple[ModelFile, ...], tmp_path: Path
) -> None:
    async def test() -> None:
        watched, faults = Watched(), Faults(tmp_path / "faults")
        executor = await watched.start(models, p99_s={"mlp": 0.1, "lstm": 0.1}, program=faults.program)
        faults.arm("hang")
        executor.run(7, "mlp", 1, 0)
        executor.run(8, "mlp", 1, 1)
        ended = await watched.ended()

        assert (ended.line, ended.lost) == ("a batch of 1 took longer than 1 s", (7, 8))
        assert not executor.is_ready
        await executor.close()
        assert not is_there(executor.pid)

    asyncio.run(test())


def test_a_part_that_shrinks_lets_the_batch_that_runs_take_as_long_as_later_ones(
    models: tuple[ModelFile, ...], tmp_path: Path
) -> None:
    async def test() -> None:
        watched, faults = Watched(), Faults(tmp_path / "faults")
        executor = await watched.start(models, p99_s={"mlp": 0.1, "lstm": 0.1}, program=faults.program)
        faults.arm("delay", delay_s=1.5)
        executor.run(7, "mlp", 1, 0)
        executor.expect({"mlp": DEADLINE_S, "lstm": DEADLINE_S})

        assert (await watched.done()).batch == 7
        await executor.close()

    asyncio.run(test())


def test_a_killed_executor_is_noticed_and_its_batches_are_lost(models: tuple[ModelFile, ...], tmp_path: Path) -> None:
    async def test() -> None:
        watched, faults = Watched(), Faults(tmp_path / "faults")
        executor = await watched.start(models, program=faults.program)
        faults.arm("hang")
        executor.run(5, "lstm", 2, 0)
        os.kill(executor.pid, signal.SIGKILL)
        ended = await watched.ended()

        assert (ended.line, ended.lost) == ("its process was killed by SIGKILL", (5,))
        await executor.close()

    asyncio.run(test())


def test_an_executor_that_exits_says_with_what(models: tuple[ModelFile, ...], tmp_path: Path) -> None:
    async def test() -> None:
        watched, faults = Watched(), Faults(tmp_path / "faults")
        executor = await watched.start(models, program=faults.program)
        faults.arm("exit")
        executor.run(5, "lstm", 2, 0)
        ended = await watched.ended()

        assert (ended.line, ended.lost) == ("its process ended with 3", (5,))
        await executor.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (Entry(files=("/sys/farside/no-such-group/cgroup.procs",)), "/sys/farside/no-such-group/cgroup.procs: No such"),
        (Entry(cores=(100_000,)), "cores 100000: Invalid argument"),
    ],
)
def test_an_executor_that_can_not_join_its_part_says_why(
    models: tuple[ModelFile, ...], entry: Entry, line: str
) -> None:
    async def test() -> None:
        place = WholePlace(Device())
        place.entry = entry
        with pytest.raises(ServeError, match=line):
            await Watched().start(models, place)

    asyncio.run(test())


def test_a_file_that_is_no_model_fails_the_start_in_one_line_with_its_name(models: tuple[ModelFile, ...]) -> None:
    async def test() -> None:
        broken = ModelFile(
            name="broken", path=__file__, framework="onnxruntime", inputs=models[0].inputs, outputs=models[0].outputs,
            max_batch=1,
        )  # fmt: skip
        with pytest.raises(ServeError, match=__file__) as caught:
            await Watched().start([models[0], broken])

        assert "\n" not in str(caught.value)

    asyncio.run(test())


def test_slots_that_would_not_fit_into_memory_are_refused_and_the_part_is_closed(
    models: tuple[ModelFile, ...],
) -> None:
    closed = []

    class Counted(WholePlace):
        def close(self) -> None:
            closed.append(self)

    async def test() -> None:
        huge = msgspec.structs.replace(models[0], max_batch=100_000_000)
        with pytest.raises(ServeError, match=r"slots could not be made: they take \d+ MiB, more than 8192 MiB"):
            await Watched().start([huge], Counted(Device(cores=(0,))))

    asyncio.run(test())
    assert len(closed) == 1


def test_a_start_that_is_cancelled_leaves_no_process(models: tuple[ModelFile, ...]) -> None:
    async def test() -> None:
        before = children()
        started = asyncio.ensure_future(
            start_executor(WholeDriver().open(Device(cores=(0,)), 100), models, lambda done: None, lambda ended: None)
        )
        await asyncio.sleep(0)
        assert children() > before
        started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await started

        assert children() == before

    asyncio.run(test())


def test_a_start_that_is_cancelled_once_it_has_failed_leaves_no_process_and_no_open_part(
    models: tuple[ModelFile, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, closed, real = tmp_path / "no.onnx", list[WholePlace](), Executor.close
    file.write_text("no model")
    broken = msgspec.structs.replace(models[0], path=str(file))

    class Counted(WholePlace):
        def close(self) -> None:
            closed.append(self)

    async def test() -> None:
        before = children()
        started = asyncio.ensure_future(
            start_executor(Counted(Device(cores=(0,))), [broken], lambda done: None, lambda ended: None)
        )

        async def close(self: Executor, within_s: float = 5.0) -> None:
            monkeypatch.setattr(Executor, "close", real)
            asyncio.get_running_loop().call_soon(started.cancel)
            await real(self, within_s)

        monkeypatch.setattr(Executor, "close", close)
        with pytest.raises(asyncio.CancelledError):
            await started

        assert (children(), len(closed)) == (before, 1)

    asyncio.run(test())


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("can_start", [True, False])
def test_memory_and_files_of_an_executor_go_with_its_process_whatever_refers_to_it(
    models: tuple[ModelFile, ...], tmp_path: Path, can_start: bool
) -> None:
    file = tmp_path / "no.onnx"
    file.write_text("no model")
    wanted = models if can_start else [msgspec.structs.replace(models[0], path=str(file))]

    async def test() -> None:
        watched = Watched()
        files, mapped = len(os.listdir("/proc/self/fd")), arenas()
        failed = None
        try:
            executor = await watched.start(wanted)
            await executor.close()
        except ServeError as error:
            failed = error

        assert (failed is None) == can_start
        assert (len(os.listdir("/proc/self/fd")), arenas()) == (files, mapped)

    asyncio.run(test())


class Owner:
    """Has an executor that tells it everything, as the front's and the worker's parts have."""

    def __init__(self) -> None:
        self.watched = Watched()

    async def start(self, models: Sequence[ModelFile]) -> None:
        self.executor = await self.watched.start(models)
        self.executor.hand_over(self.done, self.ended)

    def done(self, done: BatchDone) -> None:
        """A batch has ended."""

    def ended(self, ended: ExecutorEnded) -> None:
        """It is over."""


def test_an_executor_that_has_ended_is_forgotten_with_its_owner_before_any_garbage_collection(
    models: tuple[ModelFile, ...],
) -> None:
    async def test() -> None:
        owner = Owner()
        await owner.start(models)
        await owner.executor.close()
        known = weakref.ref(owner), weakref.ref(owner.executor)
        gc.disable()
        try:
            del owner
            assert [one() for one in known] == [None, None]
        finally:
            gc.enable()

    asyncio.run(test())


def test_an_executor_outlives_what_is_sent_to_all_processes_of_a_service(models: tuple[ModelFile, ...]) -> None:
    async def test() -> None:
        watched = Watched()
        executor = await watched.start(models[:1])
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(executor.pid, number)
        fill(executor, models[0].name, 0, 1, 1)
        executor.run(1, models[0].name, 1, 0)
        assert (await watched.done()).problem == ""
        await executor.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("tunables", "are_huge"), [("", True), ("glibc.malloc.perturb=0", True), ("glibc.malloc.hugetlb=0", False)]
)
def test_weights_lie_in_huge_pages_unless_the_kernel_or_an_administrator_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tunables: str, are_huge: bool
) -> None:
    switch = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not switch.exists() or "[madvise]" not in switch.read_text():
        pytest.skip("this kernel does not give huge pages to those that ask for them, and to no other")
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    models = small_models(tmp_path, size=0.5)

    async def huge_bytes() -> int:
        watched = Watched()
        executor = await watched.start(models)
        try:
            (line,) = (line for line in rollup_of(executor.pid) if line.startswith("AnonHugePages"))
            return int(line.split()[1]) * 1024
        finally:
            await executor.close()

    assert (asyncio.run(huge_bytes()) >= Path(models[0].path).stat().st_size / 2) is are_huge


def rollup_of(pid: int) -> list[str]:
    """Kilobytes of each kind of its memory."""
    return Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
