"""For how long a task's GPUs have been how busy, from samples of their load."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.gpu_share import Device
from farside.agent.run.ledger import Task
from farside.agent.sense.gpu import DeclaredGpus, NvmlGpus
from farside.agent.sense.load import LoadSense, own_gpus
from farside.agent.sense.load_history import GAP_S, LoadHistory
from tests.agent.node import node
from tests.agent.test_sense import FakeNvml
from tests.support.virtual_clock import VirtualClock

KEY = ("1.0", 1)


def history(*samples: tuple[float, float]) -> LoadHistory:
    """Of a task with one GPU: when it was how busy."""
    made = LoadHistory()
    for at_s, pct in samples:
        made.sample({KEY: (0,)}, {0: pct}, at_s)
    return made


def below_s(made: LoadHistory, pct: int, at_s: float) -> float:
    (load,) = made.loads(at_s)
    return load.below_s(pct)


@given(st.lists(st.tuples(st.floats(0.1, GAP_S), st.floats(0, 100)), min_size=1, max_size=40), st.integers(1, 50))
def test_it_knows_for_every_limit_when_the_load_was_last_at_or_above_it(
    steps: list[tuple[float, float]], pct: int
) -> None:
    at_s, samples = 0.0, []
    for step_s, load in steps:
        at_s += step_s
        samples.append((at_s, load))

    (told,) = history(*samples).loads(at_s)

    above_s = [when_s for when_s, load in samples if load >= pct]
    assert told.below_s(pct) == pytest.approx(at_s - (above_s[-1] if above_s else samples[0][0]))
    assert told.below_s(pct) <= told.watched_s
    levels, agos_s = [level for level, _ in told.peaks], [ago_s for _, ago_s in told.peaks]
    assert levels == sorted(set(levels), reverse=True)
    assert agos_s == sorted(agos_s, reverse=True)
    assert msgspec.json.decode(msgspec.json.encode(told), type=m.TaskLoad) == told


def test_the_busiest_gpu_of_a_task_counts() -> None:
    made = LoadHistory()
    for at_s in range(10):
        made.sample({KEY: (0, 1)}, {0: 0.0, 1: 60.0}, at_s)

    assert below_s(made, 50, 9) == 0


def test_what_happened_between_samples_that_lie_far_apart_nobody_knows() -> None:
    made = history((0, 0), (5, 0), (6 + GAP_S, 0), (9 + GAP_S, 0))

    assert below_s(made, 5, 9 + GAP_S) == 3


def test_a_sample_that_a_driver_does_not_give_is_missing_and_no_load_of_zero() -> None:
    made = history((0, 0), (5, 0))
    made.sample({KEY: (0,)}, {}, 8)

    (load,) = made.loads(8)
    assert (load.age_s, load.watched_s) == (3, 5)
    made.sample({KEY: (0,)}, {}, 5 + GAP_S + 1)
    assert made.loads(5 + GAP_S + 1) == ()


def test_nothing_is_told_of_a_task_that_is_not_watched_any_more() -> None:
    made = history((0, 0), (5, 0))

    assert made.loads(5 + GAP_S + 1) == ()
    made.sample({}, {}, 6)
    assert made.loads(6) == ()


def test_only_running_tasks_with_whole_gpus_are_watched() -> None:
    def task(number: int, state: m.State, *devices: Device) -> Task:
        told = m.TaskState(task_id=f"{number}.0", start=1, state=state, at_s=0.0)
        return Task(state=told, devices=devices)

    known = (
        task(1, "running", Device(0), Device(1)), task(2, "running", Device(2, "part")), task(3, "stopping", Device(3)),
        task(4, "running"), task(5, "running", Device(4)),
    )  # fmt: skip
    uuids = {0: "a", 1: "b", 2: "c", 3: "d"}  # the driver tells none of the GPU 4

    assert own_gpus(known, lambda _: uuids) == {("1.0", 1): ("a", "b")}


def test_loads_are_sampled_each_second_by_nvml_and_not_at_all_of_declared_gpus() -> None:
    running = Task(state=m.TaskState(task_id="1.0", start=1, state="running", at_s=0.0), devices=(Device(0),))

    async def watched(gpus: NvmlGpus | DeclaredGpus) -> tuple[m.TaskLoad, ...]:
        clock = VirtualClock()
        sense = LoadSense(gpus, lambda: (running,), lambda _: {0: "GPU-0"}, clock=clock)
        working = asyncio.ensure_future(sense.run())
        while not working.done() and not any(load.watched_s >= 3 for load in sense.read()):
            await clock.advance(1)
            await asyncio.sleep(0.001)  # a thread of the loop's asks the driver
        working.cancel()
        return sense.read()

    (load,) = asyncio.run(watched(NvmlGpus(FakeNvml())))

    assert (load.task_id, load.below_s(38) >= 3, load.below_s(37)) == ("1.0", True, 0)
    assert asyncio.run(watched(DeclaredGpus(2, "h100"))) == ()


def test_a_task_keeps_its_gpus_though_they_have_other_numbers_after_a_restart_of_the_agent(tmp_path: Path) -> None:
    class Renumbered(FakeNvml):
        def nvmlDeviceGetUUID(self, handle: int | str) -> str:  # noqa: N802
            return f"GPU-{int(handle) + 1}"

        def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
            return SimpleNamespace(gpu=(90, 0)[handle])

    with node(tmp_path, gpu_uuids=NvmlGpus(FakeNvml()).uuids) as made:
        made.start("sleep 600", gpus=(1,))
        made.until("running")
        known = made.restarted().runner.gpu_uuids_of(KEY)
    after = NvmlGpus(Renumbered())

    assert known == {1: "GPU-1"}
    assert after.busy(known.values()) == {"GPU-1": 90.0}  # what has the index 1 now is idle
    assert after.busy(["GPU-0"]) == {}
