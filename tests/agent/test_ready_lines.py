"""What a program tells of its iterations, however the bytes are cut, and whatever else it writes."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.messages import ITERATION_MAX_S, ITERATION_MIN_S, IterationTimes
from farside.agent.run.ready_lines import KEPT, LINE_BYTES_MAX, ReadyLines


def told(*parts: bytes) -> IterationTimes | None:
    heard = ReadyLines()
    for part in parts:
        heard.hear(part)
    return heard.iterations()


@given(
    st.lists(st.one_of(st.floats(1e-6, 1e6), st.sampled_from([b"ready", b"iteration", b"iteration one", b""]))),
    st.data(),
)
def test_lines_count_alike_however_they_are_cut(lines: list[float | bytes], data: st.DataObject) -> None:
    text = b"".join(line + b"\n" if isinstance(line, bytes) else f"iteration {line!r}\n".encode() for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    times = [line for line in lines if isinstance(line, float)]

    found = told(*(text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)))

    assert (found is None) == (not times)
    if found is not None:
        assert found.count == len(times)
        assert found.median_s == pytest.approx(median(times[-KEPT:]))


@given(st.lists(st.binary(max_size=2 * LINE_BYTES_MAX), max_size=8))
def test_no_bytes_of_a_program_break_it(parts: list[bytes]) -> None:
    found = told(*parts)

    assert found is None or (found.count > 0 and ITERATION_MIN_S <= found.median_s <= ITERATION_MAX_S)


@pytest.mark.parametrize("time", ["nan", "inf", "-1", "0", "5e-324", "9e-7", "2e6", "1 2", "a", ""])
def test_a_time_that_is_none_does_not_count(time: str) -> None:
    assert told(f"iteration {time}\n".encode()) is None


def test_of_a_line_that_is_too_long_nothing_counts_and_the_next_one_does() -> None:
    found = told(b"x" * LINE_BYTES_MAX, b"x iteration 3\niteration 2\n")

    assert found == IterationTimes(count=1, median_s=2.0)


@pytest.mark.parametrize("text", [b"\n", b"ready", b"iterations", b"x" * 1000, b" iteration 1\nx", b"iter\n", b"\xff"])
def test_what_is_no_iteration_says_that_it_is_ready_also_without_the_end_of_a_line(text: bytes) -> None:
    heard = ReadyLines()
    heard.hear(text)

    assert heard.is_ready


@pytest.mark.parametrize(
    "text", [b"", b" ", b"iter", b"iteration", b"iteration 1\n", b"iteration nan\n iteration 2", b"iteration 3 of 9\n"]
)
def test_lines_that_begin_with_that_word_do_not_say_that_it_is_ready(text: bytes) -> None:
    heard = ReadyLines()
    for at in range(len(text)):
        heard.hear(text[at : at + 1])

    assert not heard.is_ready


def test_the_median_is_of_the_newest() -> None:
    found = told(*[b"iteration 9\n"] * 50, *[b"iteration 1\n"] * KEPT)

    assert found == IterationTimes(count=KEPT + 50, median_s=1.0)
