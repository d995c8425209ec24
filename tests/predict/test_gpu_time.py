"""The service behind QSSF: what it expects, what it learns, and when it is not believed."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.predict.gpu_time import GpuTimeParams, GpuTimeService
from farside.scheduler.predict.gpu_time_fit import learned_from
from farside.scheduler.predict.job_history import learned_rolling, replay, tell_all
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.model_update import Orchestrator
from farside.scheduler.predict.rolling_estimate import NOBODY_KNOWS_S, RollingParams
from farside.scheduler.predict.rolling_state import without_memory
from farside.scheduler.predict.service import Expect, JobEnded, JobSubmitted, ModelRecord
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Job
from tests.predict.log import job, nameless, past, repeating

ROLLING = RollingParams()


def service(**params: object) -> GpuTimeService:
    return GpuTimeService(GpuTimeParams(**params), ROLLING)  # type: ignore[arg-type]


def trained(jobs: list[TraceJob], **params: object) -> GpuTimeService:
    made = service(**params)
    tell_all(Orchestrator([made]), past(jobs))
    made.forget_pending()
    return made


def expected(made: GpuTimeService, one: Job) -> Expect:
    told = [advice for advice in made.observe(JobSubmitted(at_s=one.submit_s, job=one)) if isinstance(advice, Expect)]
    return next(advice for advice in told if advice.sequence == one.sequence)


@cache
def fitted() -> ModelRecord:
    made, log = service(), repeating(3000)
    for fact in replay(past(log)):
        made.observe(fact)
    found = made.fit(log[-1].job.submit_s)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def log() -> list[TraceJob]:
    return repeating(3000)


@pytest.fixture
def record() -> ModelRecord:
    return fitted()


def test_without_history_the_number_of_gpus_decides() -> None:
    made = service()

    assert [expected(made, job(at, gpus=gpus)).gpu_s for at, gpus in enumerate((1, 2, 8))] == [
        NOBODY_KNOWS_S, 2 * NOBODY_KNOWS_S, 8 * NOBODY_KNOWS_S,
    ]  # fmt: skip


def test_where_users_repeat_themselves_the_model_is_believed(log: list[TraceJob]) -> None:
    made = trained(log)

    assert made.source == "model"
    assert made.judge.savings["model"] > made.judge.savings["gpus"] + 0.05


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_where_only_chance_decides_the_number_of_gpus_is_believed(seed: int) -> None:
    assert trained(nameless(2000, seed)).source == "gpus"


@pytest.mark.long
def test_a_model_that_has_lost_its_rank_is_not_believed_any_more(log: list[TraceJob]) -> None:
    made = trained(log, judged_jobs=400)
    # the same users and names from now on, but run times that have nothing to do with them
    for at, one in enumerate(log[:800]):
        again = replace(one.job, sequence=10**6 + at, submit_s=2e9 + at)
        made.observe(JobSubmitted(at_s=2e9 + at, job=again))
        made.observe(JobEnded(at_s=2e9 + at, job=again, ran_s=1e7 / (1 + one.duration_s)))

    assert made.source != "model"


@pytest.mark.long
def test_when_another_estimator_is_believed_all_who_wait_are_told_anew(log: list[TraceJob]) -> None:
    made = service()
    orchestrator = Orchestrator([made])
    waiting = job(10**6, user="u0", name="never ends", submit_s=log[0].job.submit_s)
    told = [orchestrator.tell(JobSubmitted(at_s=waiting.submit_s, job=waiting))]

    told += [orchestrator.tell(fact) for fact in replay(past(log))]

    sources = [one.source for advice in told for one in advice if isinstance(one, Expect) and one.sequence == 10**6]
    assert sources[0] == "gpus"
    assert len(sources) > 1
    assert all(first != second for first, second in pairwise(sources))


@pytest.mark.long
def test_what_ends_later_changes_nothing_that_was_said_before(log: list[TraceJob]) -> None:
    cut_s = log[2500].job.submit_s
    facts = list(replay(past(log)))
    early = [fact for fact in facts if fact.at_s <= cut_s]
    scrambled = [
        replace(fact, ran_s=fact.ran_s * 17 % 9999, job=replace(fact.job, user="other", name="x", gpus=1))
        if isinstance(fact, JobEnded)
        else replace(fact, job=replace(fact.job, user="other", name="x", gpus=3))
        for fact in facts
        if fact.at_s > cut_s
    ]

    def told(all_facts: list[JobSubmitted | JobEnded]) -> list[float]:
        orchestrator = Orchestrator([service(update_every_s=86400.0)])
        found = [[one.gpu_s for one in orchestrator.tell(fact) if isinstance(one, Expect)] for fact in all_facts]
        return [gpu_s for some in found[: len(early)] for gpu_s in some]

    assert told(facts) == told([*early, *scrambled])


@settings(deadline=None)  # the first builds the model
@given(
    user=st.sampled_from(["", "u0", "never seen"]),
    name=st.text(max_size=40),
    gpus=st.integers(1, 10**6),
    submit_s=st.floats(-1e12, 1e12),
    cpus=st.floats(0.0, 1e6),
)
def test_an_expectation_is_finite_and_above_0_whatever_comes(
    user: str, name: str, gpus: int, submit_s: float, cpus: float
) -> None:
    made = service()
    made.use(fitted())
    made.judge.source = "model"

    found = expected(made, job(1, user=user, name=name, gpus=gpus, submit_s=submit_s, cpus_per_gpu=cpus))

    assert found.source == "model"
    assert 0 < found.gpu_s < math.inf


@pytest.mark.parametrize("ran_s", [-1.0, math.nan, math.inf, -math.inf])
def test_a_run_time_that_is_none_is_counted_and_not_learned_from(ran_s: float) -> None:
    made = service()
    one = job(1, user="ann", name="debug")
    made.observe(JobSubmitted(at_s=0.0, job=one))

    made.observe(JobEnded(at_s=1.0, job=one, ran_s=ran_s))

    assert (made.refused, made.learnable) == (1, 0)
    assert made.rolling.expect(one).case == "nothing"


def test_a_job_that_came_before_us_still_teaches_the_rolling_estimate() -> None:
    made = service()

    made.observe(JobEnded(at_s=1.0, job=job(1, user="ann", name="debug"), ran_s=60.0))

    assert made.rolling.expect(job(2, user="ann", name="debug")).duration_s == pytest.approx(60.0)
    assert made.learnable == 0


def test_a_clock_that_jumps_back_or_ahead_does_no_harm(log: list[TraceJob]) -> None:
    orchestrator = Orchestrator([service()])
    jump = {500: -1e9, 501: 1e12, 502: 0.0}
    for at, fact in enumerate(replay(past(log[:600]))):
        told = orchestrator.tell(replace(fact, at_s=fact.at_s + jump.get(at, 0.0)))
        assert all(one.gpu_s > 0 for one in told if isinstance(one, Expect))


def test_too_little_history_gives_no_model() -> None:
    assert trained(repeating(100)).fit(0.0) is None


def test_a_model_from_a_record_says_the_same(record: ModelRecord, log: list[TraceJob]) -> None:
    first, second = service(), service()
    for made in (first, second):
        made.use(record)

    probes = [replace(one.job, sequence=10**6 + at) for at, one in enumerate(log[:50])]
    assert [expected(first, one) for one in probes] == [expected(second, one) for one in probes]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service": "ces"}, "is of service 'ces', not qssf"),
        ({"tables": {}}, "lacks the table of its category user"),
        ({"features": ("gpus",)}, "other features than this version's"),
        ({"text": "tree\nversion=v4\n"}, "no text of LightGBM"),
    ],
)
def test_a_model_of_another_make_is_refused(record: ModelRecord, change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        service().use(replace(record, **change))  # type: ignore[arg-type]


def test_equal_logs_give_equal_models(record: ModelRecord, log: list[TraceJob]) -> None:
    made = service()
    for fact in replay(past(log)):
        made.observe(fact)

    assert made.fit(log[-1].job.submit_s) == record


def test_rolling_settings_are_learned_where_there_are_names(log: list[TraceJob]) -> None:
    assert learned_rolling(past(log), RollingParams()) != RollingParams()
    assert learned_rolling(past(log[:50]), RollingParams()) == RollingParams()


def test_one_estimator_alone_can_be_chosen(log: list[TraceJob]) -> None:
    made = trained(log, use="rolling")

    assert (made.source, made.learnable) == ("rolling", 0)
    assert expected(made, job(10**6, user="nobody")).source == "rolling"


@pytest.mark.parametrize("name", ["judged_jobs", "window_jobs"])
def test_windows_too_short_to_see_anything_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: must be at least"):
        GpuTimeParams(**{name: 3})  # type: ignore[arg-type]


def test_a_model_in_a_file_knows_what_the_rolling_estimate_knew(record: ModelRecord, log: list[TraceJob]) -> None:
    knowing, forgetful = service(), service()
    knowing.use(record)
    forgetful.use(replace(record, text=without_memory(record.text)))
    asked = [one.job for one in log[-200:]]

    assert {knowing.rolling.expect(one).case for one in asked} >= {"similar name"}
    assert {forgetful.rolling.expect(one).case for one in asked} == {"nothing"}


@pytest.mark.parametrize("change", [lambda raw: raw[:-9], lambda raw: raw.replace('"priors"', '"prior"')])
def test_knowledge_that_was_cut_short_or_changed_is_refused(record: ModelRecord, change: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match="what the model knows of past jobs can't be read"):
        service().use(replace(record, text=change(record.text)))


# ---- guesses where nothing was known, and one user's share


def ran(made: LearnedTimes, one: Job, ran_s: float) -> None:
    """It came, and has ended."""
    made.predicted_gpu_s(one, one.submit_s)
    made.learn(JobEnded(at_s=one.submit_s + ran_s, job=one, ran_s=ran_s))


def repeated(made: LearnedTimes, at: int) -> None:
    """A job of one of ten users, whose name says exactly how long it runs."""
    kind = at % 10
    ran(made, job(at, user=f"u{kind}", name=f"work{kind}", gpus=1 + kind % 2), 10.0 * 3.0 ** (kind % 8))


def test_a_guess_where_nothing_was_known_is_no_error_that_estimates_are_corrected_by() -> None:
    """The first jobs of a cluster ran 10 s, and the next one alike counted as one of 200 s."""
    made, sweep = LearnedTimes(), [job(at, user="ann", name="short") for at in range(5)]
    for one in sweep:
        made.predicted_gpu_s(one, one.submit_s)
    for one in sweep:
        made.learn(JobEnded(at_s=2e9, job=one, ran_s=10.0))

    assert made.predicted_gpu_s(job(5, user="ann", name="short"), 2e9) == pytest.approx(10.0)
    assert made.predicted_gpu_s(job(6, user="bob", name="other"), 2e9) == pytest.approx(10.0)


@pytest.mark.parametrize("tasks", [250, 1000])
def test_an_array_of_which_nothing_was_known_turns_no_estimates_off(tasks: int) -> None:
    made = LearnedTimes()
    sweep = [job(10**6 + at, user="sue", name="sweep", submit_s=0.0) for at in range(tasks)]
    for one in sweep:
        made.predicted_gpu_s(one, 0.0)
    for at, one in enumerate(sweep):
        made.learn(JobEnded(at_s=at, job=one, ran_s=30.0 + at % 7))
    assert (made.service.learnable, made.lesson(2e9)) == (0, None)

    sources = set()
    for at in range(700):
        repeated(made, at)
        sources.add(made.service.source)

    assert sources == {"rolling"}


def test_one_user_s_jobs_of_any_length_turn_estimates_off_for_nobody() -> None:
    made = LearnedTimes()
    for at in range(2500):
        repeated(made, at)
    for at in range(2500, 5000):
        ran(made, job(at, user="eve", name="x"), 1.0 if at * 7919 % 97 % 2 else 100.0)

    assert made.service.source == "rolling"
    assert len(made.service.judge.judged) == 2000
    assert Counter(one.user for one in made.service.judge.judged).most_common(1)[0][1] == 500


def test_where_one_user_has_all_jobs_estimators_are_judged_all_the_same() -> None:
    made = LearnedTimes(GpuTimeParams(judged_jobs=400))
    for at in range(600):
        ran(made, job(at, user="ann", name=f"work{at % 5}"), 10.0 * 5.0 ** (at % 5))

    assert made.service.judge.savings
    assert made.service.source == "rolling"


@pytest.mark.long
def test_the_jobs_that_a_first_model_is_judged_by_say_whose_they_were(log: list[TraceJob]) -> None:
    made = trained(log)
    lesson = made.lesson()
    assert lesson is not None

    judged = learned_from(replace(lesson, is_first=True)).judged

    assert [one.user for one in judged] == lesson.rows[-len(judged) :, 0].tolist()


# ---- a model from a file


def unlike(made: LearnedTimes, jobs: int) -> list[int]:
    """After which jobs a fit was due, of users whose run times are nothing like those of the model's log."""
    due = []
    for at in range(jobs):
        ran(made, job(at, user=f"u{at % 5}", name=f"other{at % 7}"), 20_000.0 * (1 + at * 7919 % 97) ** 2)
        due += [at] if made.lesson(1.7e9 + at) is not None else []
    return due


def test_a_model_from_a_file_is_fitted_anew_when_its_errors_have_grown(record: ModelRecord) -> None:
    """It was kept until as many jobs had ended as it was fitted to, however wrong it was."""
    made = LearnedTimes(record=record)

    due = unlike(made, 800)

    assert made.service.drift > made.service.rule.drift
    assert due
    assert due[0] < 400 < record.trained_on


def test_a_model_from_a_file_is_fitted_anew_after_a_week_whenever_the_scheduler_began(record: ModelRecord) -> None:
    late_s = 1.7e9 + 8 * 86400.0
    known = [one.job for one in repeating(3000)[-250:]]
    made, again = LearnedTimes(record=record), LearnedTimes(record=record)
    for at, one in enumerate(known):
        for times in (made, again):
            ran(times, replace(one, sequence=at, submit_s=1.7e9 + at), 60.0)
        assert made.lesson(1.7e9 + at) is None

    assert again.lesson(late_s) is not None, "a scheduler that was started again has heard of the same ends"
