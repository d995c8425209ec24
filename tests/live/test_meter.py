"""What GPUs drew, from the agents' reports to the usage of who held them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.scheduler.manager.model.record import LiveTask
from farside.scheduler.manager.nodes.energy_meter import LONGEST_GAP_S, PowerMeter
from farside.scheduler.manager.view.usage import By, usage_of
from tests.live.test_dispatch import line_of, told, world_with_a_job

TASK = LiveTask(job_id="1", start=1, rank=0, node="n", gpus=(0, 1))


def gpus(*power_w: float | None) -> tuple[m.Gpu, ...]:
    return tuple(m.Gpu(index=at, model="H200", healthy=True, power_w=watts) for at, watts in enumerate(power_w))


def test_between_two_reports_the_mean_of_both_is_drawn_by_the_gpus_of_the_process() -> None:
    meter = PowerMeter()
    for at_s, watts in ((100.0, 200.0), (110.0, 400.0), (110.0, 400.0), (105.0, 900.0)):
        meter.read([TASK], gpus(watts, 100.0, 9999.0), at_s)

    assert meter.take(TASK.key) == (10 * (300 + 100), 20)
    assert meter.take(TASK.key) == (0, 0)


def test_what_nobody_measured_is_not_metered() -> None:
    meter = PowerMeter()
    for at_s, watts in ((100.0, None), (110.0, 400.0), (111.0 + LONGEST_GAP_S, 400.0)):
        meter.read([TASK], gpus(watts), at_s)

    assert meter.take(TASK.key) == (0, 0)


@given(st.lists(st.tuples(st.floats(0, 100), st.one_of(st.none(), st.floats(0, 1e5))), max_size=30))
def test_never_more_is_metered_than_time_has_passed_nor_more_power_than_was_told(
    steps: list[tuple[float, float | None]],
) -> None:
    meter, at_s = PowerMeter(), 0.0
    for passed_s, watts in steps:
        at_s += passed_s
        meter.read([TASK], gpus(watts, watts), at_s)

    energy_j, gpu_s = meter.take(TASK.key)
    assert 0 <= gpu_s <= 2 * at_s * (1 + 1e-9)
    assert 0 <= energy_j <= gpu_s * max((watts or 0.0 for _, watts in steps), default=0.0) * (1 + 1e-9)


def test_usage_takes_what_was_metered_and_reckons_the_rest() -> None:
    world = world_with_a_job()
    line = line_of(world, told("running"))

    def reported(at_s: float, *tasks: m.TaskState) -> None:
        report = m.Report(
            seq=1, at_s=at_s, headroom_bytes=1 << 36, psi=m.Psi(), gpus=gpus(300.0, 300.0, 0.0, 0.0), tasks=tasks
        )
        for event in line.reported(world.state, report):
            world.does(event)

    reported(1000.0, told("running"))
    world.pass_s(40)
    reported(1030.0, told("exited", exit_code=0))

    (run_interval,) = world.job("1").stints
    (used,) = usage_of(world.state.jobs.values(), By.USER, 0, world.now_s, gpu_power_w=1000.0)
    assert (run_interval.metered_gpu_s, run_interval.energy_j) == (60, 60 * 300)
    assert (used.gpu_s, used.metered_gpu_s) == (80, 60)
    assert used.energy_j == pytest.approx(60 * 300 + 20 * 1000)
