"""QSSF over Slurm: models are fitted, loaded and believed as in the manager, and people are told of it."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from farside.cli.slurm import _lines
from farside.config import SlurmConfig, load_config
from farside.errors import ConfigError, PeerError
from farside.scheduler.order.qssf import Cut, Qssf
from farside.scheduler.predict import choose_estimator, fit_process
from farside.scheduler.predict.gpu_time import Expectation, GpuTimeParams
from farside.scheduler.predict.gpu_time_fit import Fitted, Lesson, learned_from
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.model_files import ModelStore
from farside.scheduler.slurm.domain import SlurmDomain
from farside.scheduler.slurm.engine import Engine, Mode
from farside.scheduler.slurm.job_memory import Memory, limit_s_of, recall
from farside.scheduler.slurm.learned_jobs import LearnedJobs
from farside.scheduler.slurm.shadow_job import Ended
from farside.scheduler.slurm.snapshot import SlurmJob, Traits, limit_of
from farside.scheduler.slurm.state_file import StateFiles
from farside.units import format_off
from tests.predict.log import past, repeating
from tests.slurm.made import NOW_S, FakeSlurm, groups, over, running, snapshot, waiting

FULL = (running(1, ("gn1", 4)), running(2, ("gn2", 4)))
ACCOUNTS = Traits(has_accounting=True, version="22.05.8")


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., SlurmConfig]:
    def make(**told: Any) -> SlurmConfig:
        given = {
            "partitions": "gpu", "state_dir": str(tmp_path / "state"), "admin_socket": str(tmp_path / "s.sock"),
            "policy": "qssf", "turn_s": 0.1,
        }  # fmt: skip
        return load_config(SlurmConfig, (), {**given, **told})  # as TOML has them: paths are text

    return make


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    record = LearnedTimes(GpuTimeParams(first="rolling"), history=past(repeating(400))).service.fit(1e9)
    assert record is not None
    ModelStore(folder).save(record)
    return folder


def ended(job_id: int, held_s: float, *, name: str = "train", submit_s: float) -> Ended:
    return Ended(
        job_id=str(job_id), user="ann", name=name, partition="gpu", gpus=1, submit_s=submit_s, start_s=submit_s,
        end_s=submit_s + held_s, held_s=held_s, limit_s=0.0, is_requeueable=True,
    )  # fmt: skip


def a_week(jobs: int = 240) -> tuple[Ended, ...]:
    """Jobs that have ended, of six names, each of which tells how long its jobs run."""
    return tuple(
        ended(100 + at, 20.0 * 3.0 ** (at % 6), name=f"{'abcdef'[at % 6] * 6}", submit_s=NOW_S - 600_000 + 2000.0 * at)
        for at in range(jobs)
    )


def engine_over(config: SlurmConfig, *jobs: SlurmJob, past_jobs: Iterable[Ended] = ()) -> tuple[Engine, FakeSlurm]:
    slurm = FakeSlurm(snapshot(*FULL, *jobs), traits_told=ACCOUNTS, ended=tuple(past_jobs))
    return Engine(config, Mode.RUN, slurm, now_s=lambda: slurm.seen.at_s), slurm


def order(slurm: FakeSlurm) -> list[str]:
    there = (one for one in slurm.seen.jobs if not one.held)
    return [one.job_id for one in sorted(there, key=lambda one: -one.priority)]


def learned_by(one: Engine) -> LearnedJobs:
    return one._shadow_log.learned


def times_of(one: Engine) -> LearnedTimes:
    found = learned_by(one).times
    assert found is not None
    return found


def expectation(one: Engine, job_id: str) -> Expectation:
    found = next(known for _, known, _ in learned_by(one).expectations([job_id]))
    assert found is not None
    return found


def status(one: Engine) -> dict[str, Any]:
    found = asyncio.run(one.status({}))
    assert isinstance(found, dict)
    return found


async def fitted(one: Engine) -> None:
    """Until the fit that has begun is over; the next turn takes it."""
    fit = one._fitter._fit
    assert fit is not None
    async with asyncio.timeout(60):
        await asyncio.wait([fit])


@pytest.fixture
def fits_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_fit_process.py has the process, which computes only while no test beside this one wants to."""

    async def here(lesson: Lesson) -> Fitted:
        return await asyncio.to_thread(learned_from, lesson)

    monkeypatch.setattr(fit_process, "fitted_apart", here)


# ---------------------------------------------------------------------- models


@pytest.mark.usefixtures("fits_in_a_thread")
def test_a_model_is_fitted_to_the_jobs_of_sacct_and_used_for_jobs_that_wait(
    config: Callable[..., SlurmConfig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(choose_estimator, "LEAST_JUDGED", 20)
    jobs = waiting(900, 4, name="ffffff"), waiting(901, 4, name="aaaaaa")
    one, slurm = engine_over(config(), *jobs, past_jobs=a_week())

    async def scene() -> tuple[bool, bool]:
        await one.turn()
        is_fitting, before = one._fitter.is_fitting, expectation(one, "900").source
        await fitted(one)
        await one.turn()
        return is_fitting, before == "model"

    assert asyncio.run(scene()) == (True, False), "the first turn decided without it"

    assert expectation(one, "900").source == "model"
    assert order(slurm) == ["901", "900"]
    # All but the first, of which nothing was known.
    assert learned_by(one).goes_by == (
        "jobs are expected to run as long as similar jobs did, and by trees fitted to 239 jobs"
    )
    assert "a model of run times was fitted" in caplog.messages
    assert learned_by(one).goes_by in caplog.messages


def test_a_fit_that_fails_costs_its_model_alone(
    config: Callable[..., SlurmConfig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(_: Lesson) -> Fitted:
        raise PeerError("no memory is left")

    monkeypatch.setattr(fit_process, "fitted_apart", fails)
    jobs = waiting(900, 4, name="ffffff"), waiting(901, 4, name="aaaaaa")
    one, slurm = engine_over(config(), *jobs, past_jobs=a_week())

    async def scene() -> None:
        await one.turn()
        await fitted(one)
        await one.turn()

    asyncio.run(scene())

    assert any("was not fitted" in line for line in caplog.messages)
    assert not one._fitter.is_fitting
    assert order(slurm) == ["901", "900"]
    assert expectation(one, "900").source == "rolling"


def test_a_model_of_predict_fit_is_used_from_the_first_job(config: Callable[..., SlurmConfig], models: Path) -> None:
    known = repeating(400)[-1].job
    job = waiting(900, known.gpus, user=known.user, name=known.name)
    bare, _ = engine_over(config(), job)
    one, _ = engine_over(config(policy_models=str(models)), job)

    asyncio.run(bare.turn())
    asyncio.run(one.turn())

    assert list(learned_by(bare).expectations(["900"])) == [("900", None, job.limit_s)]
    assert expectation(one, "900").case == "similar name", "the file has what past jobs have taught as well"
    assert math.isnan(times_of(bare).service._pending[900].model_s)
    assert times_of(one).service._pending[900].model_s > 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "qssf.json").unlink(), "No such file"),
        (lambda folder: (folder / "qssf.json").write_text(""), "qssf.json: "),
        (lambda folder: next(folder.glob("qssf-*.txt")).write_bytes(b"tree"), "has 4 bytes, not the"),
    ],
)
def test_a_model_that_is_missing_or_damaged_is_refused_at_the_start_in_one_line(
    config: Callable[..., SlurmConfig], models: Path, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for path in models.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    spoil(folder)

    with pytest.raises(ConfigError) as refused:
        engine_over(config(policy_models=str(folder)))

    assert str(refused.value).startswith("policy_models: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"policy": "las", "policy_models": "/nowhere"}, "policy_models: las asks for no model of run times"),
        ({"policy": "fifo", "policy_history": "/nowhere"}, "policy_history: fifo learns nothing from past jobs"),
        ({"policy_history": "/nowhere/past.csv"}, "policy_history: /nowhere/past.csv: "),
    ],
)
def test_past_that_nobody_learns_from_or_that_is_not_there_is_refused(
    config: Callable[..., SlurmConfig], told: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        engine_over(config(**told))

    assert str(refused.value).startswith(said)


def test_past_jobs_of_a_file_are_learned_from(config: Callable[..., SlurmConfig], tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    rows = "".join(f"{at},{at * 100},ann,train,1,50\n" for at in range(20))
    path.write_text("job_id,submit_s,user,name,gpus,duration_s\n" + rows)
    one, _ = engine_over(config(policy_history=str(path)), waiting(900))

    asyncio.run(one.turn())

    known = expectation(one, "900")
    assert known.run_s == pytest.approx(50.0, rel=0.01)
    assert known.from_jobs == 20


def test_gittins_begins_with_the_services_of_a_file(config: Callable[..., SlurmConfig], tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    path.write_text("job,gpu_time_s\na,5\nb,7\n")

    one, _ = engine_over(config(policy="gittins", policy_history=str(path), policy_settings="is_learning=false"))

    assert [float(sample) for sample in one._rules.order.distribution.samples] == [5.0, 7.0]  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- a start anew


def cut_of(one: Engine) -> Cut:
    (group,) = groups(snapshot())
    found = learned_by(one).history(group).order
    assert isinstance(found, Qssf)
    return found.cut


def test_what_was_learned_outlives_a_restart_and_a_model_is_fitted_anew_at_once(
    config: Callable[..., SlurmConfig],
) -> None:
    """Also without slurmdbd, and what jobs were expected to take that had come before others ended."""
    slurm = FakeSlurm(snapshot(*FULL))
    one = Engine(config(), Mode.RUN, slurm, now_s=lambda: slurm.seen.at_s)
    waits = [waiting(5000, name="cccccc", submit_s=NOW_S + 100.0), waiting(5001, submit_s=NOW_S + 30_000.0)]

    async def scene() -> None:
        await one.turn()
        for at in range(205):
            begin_s = NOW_S + 200.0 * at
            job = waiting(
                100 + at, name="abcdef"[at % 6] * 6, submit_s=begin_s + 1.0, start_s=begin_s + 1.0
            )  # fmt: skip
            there = [*FULL, *(job for job in waits if job.submit_s <= begin_s)]
            slurm.seen = snapshot(*there, over(job, begin_s + 2.0 + 5.0 * 2.0 ** (at % 6)), at_s=begin_s + 199.0)
            await one.turn()
        async with one._fitter:
            assert one._fitter.is_fitting

    asyncio.run(scene())
    again = Engine(config(), Mode.RUN, slurm, now_s=lambda: slurm.seen.at_s)

    async def begins() -> bool:
        async with again._fitter:
            await again.turn()
            return again._fitter.is_fitting

    assert asyncio.run(begins()), "to all that is known to have ended"
    assert cut_of(again) == cut_of(one)
    assert cut_of(one).short_gpu_s > 0
    for job_id in ("5000", "5001"):
        assert expectation(again, job_id) == expectation(one, job_id)
    assert expectation(one, "5000").from_jobs < expectation(one, "5001").from_jobs


# ---------------------------------------------------------------------- time limits


def test_the_limit_that_slurm_gives_at_the_start_to_a_job_without_any_does_not_count(
    config: Callable[..., SlurmConfig],
) -> None:
    """It is the partition's; as a limit of the job's own it would make it a short job in the shadow, and `srtf` another
    one by the start.
    """
    job = waiting(900, 4, user="bob")
    slurm = FakeSlurm(snapshot(*FULL, job))
    one = Engine(config(policy="srtf", preempt=True), Mode.RUN, slurm, now_s=lambda: slurm.seen.at_s)
    runs = running(900, ("gn1", 4), user="bob", since_s=-5.0, submit_s=job.submit_s, limit_s=600.0)

    asyncio.run(one.turn())
    slurm.seen = snapshot(runs, FULL[1], at_s=NOW_S + 10.0)
    asyncio.run(one.turn())
    (group,) = groups(slurm.seen)
    domain = SlurmDomain(
        slurm.seen, one._memory, group, one._rules, ACCOUNTS, may_preempt=True, estimator=learned_by(one).estimator
    )
    remaining_s = {seen.job_id: domain.domain.table.remaining_s.item(row) for row, seen in domain.jobs.items()}
    slurm.seen = snapshot(over(runs, NOW_S + 20.0), FULL[1], at_s=NOW_S + 21.0)
    asyncio.run(one.turn())

    assert remaining_s["900"] == math.inf, "nothing is known of it"
    assert StateFiles(config().state_dir).ended()["900"].limit_s == 0.0


def test_a_limit_that_a_user_gives_or_takes_while_the_job_waits_counts() -> None:
    first = recall(Memory(), [waiting(1), waiting(2, limit_s=600.0)], NOW_S)

    then = recall(first, [waiting(1, limit_s=300.0), waiting(2)], NOW_S + 5.0)
    late = [running(1, ("gn1", 1), limit_s=300.0), running(2, ("gn1", 1), limit_s=86_400.0)]
    found = recall(then, late, NOW_S + 10.0)

    assert [limit_s_of(found.jobs[job.job_id], job) for job in late] == [300.0, math.inf]


@pytest.mark.parametrize(("told_s", "is_none"), [(365 * 86_400.0, True), (364 * 86_400.0, False), (math.inf, True)])
def test_a_year_is_what_slurm_says_of_a_job_without_a_limit(told_s: float, is_none: bool) -> None:
    assert (limit_of(told_s) == math.inf) == is_none


# ---------------------------------------------------------------------- what people are told


def test_without_history_jobs_go_by_their_gpus_and_log_and_status_say_so(
    config: Callable[..., SlurmConfig], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, slurm = engine_over(config(), waiting(900, 4), waiting(901, 1), waiting(902, 4, limit_s=60.0))

    asyncio.run(one.turn())

    said = "no job is known to have ended, so jobs go by their time limits, those without one by their number of GPUs"
    assert order(slurm) == ["902", "901", "900"]
    assert caplog.messages.count(said) == 1
    told = status(one)
    assert told["goes_by"] == said
    assert {key: told["expected"][0][key] for key in ("job_id", "expected_s", "expected_error")} == {
        "job_id": "902", "expected_s": None, "expected_error": None,
    }  # fmt: skip
    assert said in _lines(told)
    assert "  job 901: how long it runs is not known, as no job had ended when it came; its number of GPUs counts" in (
        _lines(told)
    )


def test_status_says_what_jobs_are_expected_to_take_from_how_many_and_how_wrong_that_was(
    config: Callable[..., SlurmConfig],
) -> None:
    one, _ = engine_over(config(), waiting(900, name="bbbbbb"), past_jobs=a_week(60))

    asyncio.run(one.turn())

    told = status(one)
    (known,) = told["expected"]
    assert known["expected_s"] == pytest.approx(60.0, rel=0.1)
    assert known["expected_from_jobs"] == 10
    assert 1.0 <= known["expected_error"] < 2.0
    line = next(line for line in _lines(told) if line.startswith("  job 900: "))
    assert "is expected to run 1 min in all (the median), from 10 jobs of this user with a similar name; half" in line
    assert f"half of such estimates were {format_off(known['expected_error'])}" in line


def test_a_policy_that_does_not_ask_how_long_jobs_run_says_nothing_of_it(config: Callable[..., SlurmConfig]) -> None:
    one, _ = engine_over(config(policy="las"), waiting(900), past_jobs=a_week(60))

    asyncio.run(one.turn())

    assert (status(one)["goes_by"], status(one)["expected"]) == ("", [])


def test_where_trees_can_not_be_fitted_it_is_said_and_jobs_go_by_similar_ones(
    config: Callable[..., SlurmConfig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from farside.scheduler.sim import learned_before

    monkeypatch.setattr(learned_before, "has_lightgbm", lambda: False)
    one, _ = engine_over(config(), waiting(900, name="bbbbbb"), past_jobs=a_week())
    stop = asyncio.Event()

    async def scene() -> None:
        turns = asyncio.create_task(one.run(stop))
        async with asyncio.timeout(60):
            while not status_of(one)["turns"]:
                await asyncio.sleep(0)
        stop.set()
        await turns

    asyncio.run(scene())

    assert any("LightGBM is not installed" in line for line in caplog.messages)
    assert not one._fitter.is_fitting
    assert learned_by(one).goes_by == "jobs are expected to run as long as similar jobs did"


def status_of(one: Engine) -> dict[str, int]:
    return {"turns": one._turns}
