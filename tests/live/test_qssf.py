"""QSSF in the manager: jobs are ordered by what jobs like them took, as the log says it."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from farside.config import ManagerConfig
from farside.errors import ConfigError
from farside.scheduler.manager.decider.adapter import job_of
from farside.scheduler.manager.decider.decide import Decider
from farside.scheduler.manager.decider.expectation import expected_of
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.event import CancelRequested, HoldRequested
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.order.qssf import Qssf
from farside.scheduler.predict.gpu_time import GpuTimeParams
from farside.scheduler.predict.gpu_time_fit import learned_from
from farside.scheduler.predict.learned_times import LIVE, LearnedTimes
from farside.scheduler.predict.model_files import ModelStore
from farside.scheduler.sim.learned_before import learned_before
from farside.scheduler.state import Job
from farside.scheduler.table import Floats
from tests.live.world import World, rules
from tests.predict.log import past, repeating


class Learning(World):
    """A world whose policy goes by run times; ``times`` is the estimator of the present scheduler process."""

    def __init__(self, order: str = "qssf", *, nodes: int = 1, gpus: int = 1, **settings: str) -> None:
        super().__init__(rules(order, **settings), nodes=nodes, gpus=gpus, make_times=LearnedTimes)

    @property
    def times(self) -> LearnedTimes:
        found = self.decider.times
        assert found is not None
        return found

    def ran(self, name: str, length_s: float, *, gpus: int = 1, user: str = "ann") -> str:
        job_id = self.submit(gpus, name=name, user=user)
        self.runs(job_id)
        self.pass_s(length_s)
        self.exits(job_id)
        assert self.phase(job_id) is Phase.DONE
        return job_id

    def why(self, job_id: str) -> tuple[str, ...]:
        return self.decider.why(job_id, self.now_s, str)


@pytest.fixture
def world() -> Learning:
    return Learning()


def test_a_job_like_those_that_were_short_goes_before_one_like_those_that_were_long(world: Learning) -> None:
    for _ in range(3):
        world.ran("train", 1000.0)
        world.ran("test", 10.0)
    running = world.submit(name="train")
    world.runs(running)

    long, short = world.submit(name="train"), world.submit(name="test")
    world.exits(running)

    assert (world.phase(long), world.phase(short)) == (Phase.WAITING, Phase.STARTING)


def test_a_job_that_was_held_goes_by_what_is_expected_of_it_as_others_do(world: Learning) -> None:
    """It counted as one that had waited a fortnight, and went before all."""
    for _ in range(3):
        world.ran("train", 1000.0)
        world.ran("test", 10.0)
    running = world.submit(name="train")
    world.runs(running)
    long, short = world.submit(name="train"), world.submit(name="test")
    world.does(HoldRequested(job_id=long, by="ann"))
    world.pass_s(5.0)
    world.release(long)

    world.exits(running)

    assert (world.phase(long), world.phase(short)) == (Phase.WAITING, Phase.STARTING)


def test_what_is_expected_is_told_with_its_error_and_the_jobs_that_it_comes_from(world: Learning) -> None:
    for _ in range(5):
        world.ran("test", 10.0)
    world.submit(name="train")

    waiting = world.submit(name="test")

    expected = expected_of(world.times, world.job(waiting))
    assert expected.expected_from_jobs == 5
    assert expected.expected_s == pytest.approx(10.0, rel=0.01)
    assert expected.expected_error == pytest.approx(1.0, rel=0.01)
    assert (
        "is expected to run 10 s in all (the median), from 5 jobs of this user with a similar name; half of such "
        "estimates were right to 1 %"
    ) in world.why(waiting)


def test_who_waits_is_told_the_means_of_both_jobs_by_which_they_are_ordered(world: Learning) -> None:
    for _ in range(3):
        world.ran("train", 1000.0)
        world.ran("test", 10.0)
    world.submit(name="train")
    world.submit(name="test")

    waiting = world.submit(name="train")

    (line,) = [line for line in world.why(waiting) if "first in line" in line]
    assert re.search(
        r"the first in line is job \d+ \(1 GPU\), which is expected to take .+ GPU time in the mean, the other .+", line
    )


def test_without_history_nothing_is_expected_and_the_words_say_what_counts_instead(world: Learning) -> None:
    running, waiting = world.submit(), world.submit()

    assert expected_of(world.times, world.job(waiting)).expected_s is None
    assert "how long it runs is not known, as no job had ended when it came; its number of GPUs counts" in world.why(
        waiting
    )
    assert world.phase(running) is Phase.STARTING


def test_without_history_jobs_go_by_their_time_limits() -> None:
    world = Learning()
    running = world.submit()
    world.runs(running)
    long, short = world.submit(time_limit_s=5000.0), world.submit(time_limit_s=50.0)

    world.exits(running)

    assert (world.phase(long), world.phase(short)) == (Phase.WAITING, Phase.STARTING)
    assert any("its time limit of 1h 23m counts" in line or "its time limit of" in line for line in world.why(long))


def test_no_more_is_expected_than_the_time_limit_allows(world: Learning) -> None:
    for _ in range(3):
        world.ran("train", 1000.0)
    world.submit()

    limited = world.submit(name="train", time_limit_s=60.0)

    assert expected_of(world.times, world.job(limited)).expected_s == 60.0
    assert world.times.predicted_gpu_s(_seen(world, limited), world.now_s) == 60.0


def _seen(world: World, job_id: str) -> Job:
    return job_of(world.job(job_id))


def figures(world: Learning, jobs: Iterable[str]) -> list[object]:
    order = world.decider.domain.rules.order
    assert isinstance(order, Qssf)
    return [order.cut, *(expected_of(world.times, world.job(job_id)) for job_id in jobs)]


def a_day(world: Learning) -> list[str]:
    for at in range(60):
        world.ran(f"train-{at % 3}", 10.0 + 100.0 * (at % 3), user=f"u{at % 2}")
    return [world.submit(name="train-1", user="u1"), world.submit(name="train-2"), world.submit(name="new", user="u0")]


def test_what_was_learned_outlives_a_restart(world: Learning) -> None:
    jobs = a_day(world)
    before = figures(world, jobs)

    world.lead()

    assert figures(world, jobs) == before
    assert before[0] != Qssf().cut


def test_what_was_learned_outlives_a_node_that_joins(world: Learning) -> None:
    jobs = a_day(world)
    before, domain = figures(world, jobs), world.decider.domain

    world.join("n1", gpus=1)

    assert world.decider.domain is not domain
    assert figures(world, jobs) == before


def test_another_leader_learns_the_same_from_the_same_log(world: Learning) -> None:
    jobs = a_day(world)
    state, times = LiveState(), LearnedTimes()
    for entry in world.log:
        apply(state, entry)

    other = Decider(world.rules, state, world.now_s, times=times)

    assert other.domain.rules.order == world.decider.domain.rules.order
    assert [expected_of(times, state.jobs[job]) for job in jobs] == figures(world, jobs)[1:]


def test_a_job_that_never_ran_teaches_nothing(world: Learning) -> None:
    world.submit()
    waiting = world.submit(name="test")
    world.does(CancelRequested(job_id=waiting, by="ann"))
    later = world.submit(name="test")

    assert expected_of(world.times, world.job(later)).expected_s is None


def test_tasks_of_an_array_are_expected_to_take_the_same(world: Learning) -> None:
    world.ran("sweep", 30.0)
    world.submit()

    number = world.submit(name="sweep", count=3)

    tasks = [expected_of(world.times, world.job(f"{number}_{at}")).expected_s for at in range(3)]
    assert tasks == pytest.approx([30.0] * 3, rel=0.01)


def test_a_model_that_was_fitted_elsewhere_meanwhile_is_used_for_jobs_that_wait() -> None:
    world = Learning()
    for at in range(210):
        world.ran(f"train-{at % 7}", 10.0 * (1 + at % 7))
    running, waiting = world.submit(name="train-1"), world.submit(name="train-3")
    lesson = world.times.lesson(world.now_s)
    assert lesson is not None
    assert world.times.lesson(world.now_s) is None, "one fit is enough"

    world.decider.take(learned_from(lesson))
    world.settle()

    seen = world.times.service._pending[world.job(waiting).sequence]
    assert not math.isnan(seen.model_s)
    assert world.phase(running) is Phase.STARTING


def test_remaining_time_is_the_limit_or_else_what_is_expected() -> None:
    world = Learning("srtf")
    for _ in range(3):
        world.ran("train", 100.0)
    running = world.submit(name="train")
    world.runs(running)
    limited, expected, unknown = (
        world.submit(name="x", time_limit_s=500.0), world.submit(name="train"), world.submit(name="y", user="bob")
    )  # fmt: skip

    remaining = [
        world.decider.domain.table.remaining_s.item(world.decider._planner.row(job))
        for job in (limited, expected, unknown)
    ]

    assert remaining[0] == 500.0
    assert remaining[1] == pytest.approx(100.0, rel=0.01)
    assert remaining[2] == pytest.approx(100.0, rel=0.01), "of bob nothing is known, of all users that"


# ---- what is known before the first job


def config(tmp_path: Path, **told: object) -> ManagerConfig:
    return ManagerConfig(**{"policy": "qssf", **told})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    times = LearnedTimes(GpuTimeParams(first="rolling", rolling_weight=0.5), history=past(repeating(400)))
    record = times.service.fit(1e9)
    assert record is not None
    ModelStore(folder).save(record)
    return folder


class NoTrees:
    """Trees that say the same of each job."""

    def duration_s(self, rows: Floats) -> Floats:
        return np.full(len(rows), 12_345.0)


def test_a_model_of_predict_fit_is_used_from_the_first_job(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = learned_before(config(tmp_path, policy_models=models))
    times = before.times()
    assert times is not None
    known = repeating(400)[-1].job
    times.service.judge.source = "model"  # its own figures say that it is not better on so short a log

    times.predicted_gpu_s(known, 0.0)

    expected = times.expectation(known.sequence)
    assert expected is not None
    assert expected.source == "model"
    # What the trees say counts as much as the file's lambda leaves to them.
    monkeypatch.setattr(times.service, "_trees", NoTrees())
    times.predicted_gpu_s(again := replace(known, sequence=10**6, submit_s=known.submit_s + 1), 0.0)
    other = times.expectation(again.sequence)
    assert other is not None
    rolling_s = times.service._pending[again.sequence].rolling_median_s
    assert other.run_s == pytest.approx(times.service.weight * rolling_s + (1 - times.service.weight) * 12_345.0)
    assert other.run_s != pytest.approx(expected.run_s)


def test_past_jobs_from_a_file_are_learned_from(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    rows = "".join(f"{at},{at * 100},{'ann'},train,1,50\n" for at in range(20))
    path.write_text("job_id,submit_s,user,name,gpus,duration_s\n" + rows)

    before = learned_before(config(tmp_path, policy_history=path))

    assert len(before.history) == 20
    world = Learning()
    times = before.times()
    assert times is not None
    job = world.submit(name="train")
    times.predicted_gpu_s(_seen(world, job), 0.0)
    known = times.expectation(world.job(job).sequence)
    assert known is not None
    assert known.run_s == pytest.approx(50.0, rel=0.01)
    assert known.from_jobs == 20


def test_gittins_begins_with_the_services_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_text("job,gpu_time_s\na,5\nb,7\n")
    told = config(tmp_path, policy="gittins", policy_history=path, policy_settings="is_learning=false")

    order = learned_before(told).rules.order

    assert [float(one) for one in order.distribution.samples] == [5.0, 7.0]  # type: ignore[attr-defined]


def test_a_file_of_past_jobs_is_refused_by_a_policy_that_learns_nothing(tmp_path: Path) -> None:
    told = config(tmp_path, policy="las", policy_history=tmp_path / "past.csv")

    with pytest.raises(ConfigError, match="policy_history: las learns nothing from past jobs"):
        learned_before(told)


def test_a_model_is_refused_by_a_policy_that_asks_for_none(tmp_path: Path) -> None:
    told = config(tmp_path, policy="gittins", policy_models=tmp_path)

    with pytest.raises(ConfigError, match="policy_models: gittins asks for no model of run times"):
        learned_before(told)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "qssf.json").unlink(), "No such file"),
        (lambda folder: (folder / "qssf.json").write_text(""), "qssf.json: "),
        (lambda folder: _edit(folder, '"format": 2', '"format": 9'), "has format 9; this version reads 2"),
        (lambda folder: _cut(folder), "not the"),
    ],
)
def test_a_model_that_is_missing_empty_damaged_or_of_another_version_is_one_line(
    tmp_path: Path, models: Path, spoil: object, said: str
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for path in models.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    spoil(folder)  # type: ignore[operator]
    told = config(tmp_path, policy_models=folder)

    with pytest.raises(ConfigError) as refused:
        learned_before(told)

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "this is no log\n"])
def test_a_history_that_is_empty_or_no_log_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "past.csv"
    path.write_text(text)
    told = config(tmp_path, policy_history=path)

    with pytest.raises(ConfigError) as refused:
        learned_before(told)

    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


def _edit(folder: Path, old: str, new: str) -> None:
    path = folder / "qssf.json"
    path.write_text(path.read_text().replace(old, new))


def _cut(folder: Path) -> None:
    (path,) = folder.glob("qssf-*.txt")
    path.write_bytes(path.read_bytes()[:-10])


def test_live_estimates_are_believed_from_the_first_job_that_ends() -> None:
    assert LIVE.first == "rolling"
