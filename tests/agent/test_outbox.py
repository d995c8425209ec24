"""Reports on their way: numbered, kept until acknowledged, bounded."""

from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.backoff import FIRST_S, backoff_s
from farside.agent.outbox import IN_FLIGHT_MAX, TOLD_WAITING_MAX, Outbox

READING = m.Reading(at_s=1.0, headroom_bytes=0, psi=m.Psi(), gpus=())


def state(name: m.State, task_id: str = "1.0") -> m.TaskState:
    return m.TaskState(task_id=task_id, start=1, state=name, at_s=1.0)


def test_of_one_task_only_the_newest_state_is_told() -> None:
    outbox = Outbox()
    outbox.note(state("running"))
    outbox.note(state("running", "2.0"))
    outbox.note(state("exited"))

    report = outbox.compose(READING)

    assert report is not None
    assert report.tasks == (state("running", "2.0"), state("exited"))
    assert not outbox.has_news


def test_of_two_jobs_tasks_that_have_one_number_both_are_told() -> None:
    ours, theirs = (msgspec.structs.replace(state("lost"), submitted_s=at_s) for at_s in (1.0, 2.0))
    outbox = Outbox()
    for one in (ours, theirs):
        outbox.note(one)

    report = outbox.compose(READING)

    assert report is not None
    assert report.tasks == (ours, theirs)


def test_a_report_is_kept_until_it_is_acknowledged() -> None:
    outbox = Outbox()
    first, second = outbox.compose(READING), outbox.compose(READING)

    assert list(outbox.unacked) == [first, second]
    outbox.acknowledge(1)
    assert list(outbox.unacked) == [second]


def test_behind_a_silent_manager_nothing_grows() -> None:
    outbox = Outbox()
    reports = [outbox.compose(READING) for _ in range(IN_FLIGHT_MAX)]

    outbox.note(state("exited"))

    assert None not in reports
    assert outbox.compose(READING) is None
    outbox.acknowledge(1)
    later = outbox.compose(READING)
    assert later is not None
    assert later.tasks == (state("exited"),)


def test_more_tasks_than_a_frame_holds_go_into_the_next_report() -> None:
    outbox = Outbox()
    for number in range(m.TASKS_MAX + 1):
        outbox.note(state("exited", f"{number}.0"))

    first, second = outbox.compose(READING), outbox.compose(READING)

    assert first is not None
    assert second is not None
    assert [len(first.tasks), len(second.tasks)] == [m.TASKS_MAX, 1]


def word(number: int, text: str = "", *, service: str = "sums") -> m.Told:
    return m.Told(service=service, job="1", start=number + 1, raw=msgspec.Raw(msgspec.json.encode(text)))


def test_what_a_service_tells_of_a_job_comes_again_until_it_is_acknowledged() -> None:
    outbox = Outbox()
    assert outbox.note_told(word(0, "first"))
    assert outbox.note_told(word(0, "then"))
    assert outbox.has_news

    first, second = outbox.compose(READING), outbox.compose(READING)

    assert first is not None
    assert second is not None
    assert (first.told, second.told) == ((word(0, "then"),), ())
    assert [report.told for report in outbox.unacked] == [(word(0, "then"),), ()]
    outbox.acknowledge(1)
    assert list(outbox.unacked) == [second]


def test_what_is_too_long_or_too_much_is_refused_and_what_waits_stays() -> None:
    outbox = Outbox()
    assert not outbox.note_told(word(0, "x" * m.SERVICE_BYTES_MAX))
    assert all(outbox.note_told(word(number)) for number in range(TOLD_WAITING_MAX))

    assert not outbox.note_told(word(TOLD_WAITING_MAX))
    assert outbox.note_told(word(0, "a later word of what waits already"))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, m.SERVICE_BYTES_MAX - 2)), max_size=30))
def test_every_word_of_a_service_is_told_in_reports_of_a_bounded_size(words: list[tuple[int, int]]) -> None:
    outbox, newest, told = Outbox(), dict[int, m.Told](), dict[int, m.Told]()
    for number, size in words:
        newest[number + 1] = word(number, "x" * size)
        assert outbox.note_told(newest[number + 1])
    for _ in range(len(words)):
        report = outbox.compose(READING)
        assert report is not None
        assert sum(len(bytes(one.raw)) for one in report.told) <= m.TOLD_BYTES_MAX
        told.update((one.start, one) for one in report.told)
        outbox.acknowledge(report.seq)

    assert told == newest
    assert not outbox.has_news


@given(st.lists(st.tuples(st.sampled_from("nca"), st.integers(0, 5)), max_size=40))
def test_every_state_is_told_or_replaced_by_a_later_one(steps: list[tuple[str, int]]) -> None:
    outbox = Outbox()
    told: dict[str, m.TaskState] = {}
    newest: dict[str, m.TaskState] = {}
    for step, number in steps:
        if step == "n":
            newest[f"{number}.0"] = m.TaskState(task_id=f"{number}.0", start=1, state="running", at_s=len(newest))
            outbox.note(newest[f"{number}.0"])
        elif step == "c":
            report = outbox.compose(READING)
            told.update({one.task_id: one for one in (report.tasks if report else ())})
        else:
            outbox.acknowledge(number)
    for _ in range(2):
        outbox.acknowledge(10_000)
        report = outbox.compose(READING)
        assert report is not None
        told.update({one.task_id: one for one in report.tasks})

    assert told == newest


@given(st.integers(0, 5000), st.floats(0.2, 600), st.integers(0, 99))
def test_a_wait_grows_up_to_its_bound_and_is_never_the_same_for_all(failures: int, longest_s: float, seed: int) -> None:
    wait_s = backoff_s(failures, longest_s=longest_s, rng=Random(seed))

    assert min(longest_s, FIRST_S) / 2 <= wait_s <= longest_s


def test_the_first_attempt_after_a_loss_comes_soon() -> None:
    assert backoff_s(0, longest_s=60, rng=Random(1)) <= FIRST_S
