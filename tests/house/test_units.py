"""Human units, in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.units import (
    GIB,
    KIB,
    MIB,
    format_bytes,
    format_off,
    format_seconds,
    parse_bytes,
    parse_fraction,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("64MiB", 64 * MIB),
        ("64 M", 64 * MIB),
        ("1.5GiB", 1536 * MIB),
        ("1kB", 1000),
        ("2 kib", 2 * KIB),
    ],
)
def test_text_with_a_unit_is_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "64 parsec", "-1", "0.3", "1e3000", "nan", "12 34"])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unit|whole number|not a number"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5), ("500ms", 0.5), ("250us", 0.00025), ("2min", 120), ("0.5", 0.5), ("1h", 3600)]
)
def test_text_with_a_unit_is_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


def test_a_percentage_is_a_fraction() -> None:
    assert parse_fraction("20%") == pytest.approx(parse_fraction("0.2"))


def test_bytes_for_people_are_short() -> None:
    assert [format_bytes(count) for count in (0, 512, 1536, 64 * MIB, 1536 * MIB, 1000 * GIB)] == [
        "0 B", "512 B", "1.5 KiB", "64 MiB", "1.5 GiB", "1000 GiB",
    ]  # fmt: skip


def test_durations_for_people_are_short() -> None:
    assert [format_seconds(value) for value in (2.5e-7, 0.00025, 0.0125, 3.2, 240, 9000)] == [
        "250 ns", "250 us", "12.5 ms", "3.2 s", "4 min", "2.5 h",
    ]  # fmt: skip


def test_a_duration_that_rounds_to_the_next_unit_is_written_in_it() -> None:
    assert [format_seconds(value) for value in (9.996e-7, 0.0009996, 0.9996, 59.97, 3599)] == [
        "1 us", "1 ms", "1 s", "1 min", "1 h",
    ]  # fmt: skip


@given(st.integers(min_value=0, max_value=1 << 60))
def test_printed_bytes_read_back_within_their_three_digits(count: int) -> None:
    number, unit = format_bytes(count).split()

    scale = parse_bytes(f"1{unit}")

    assert abs(float(number) * scale - count) <= max(0.5, 0.0051 * count)


def test_what_an_error_s_factor_says_is_no_factor_of_1() -> None:
    assert [format_off(factor) for factor in (1.0, 1.001, 1.03, 1.099, 1.1, 1.84, 20.3)] == [
        "right to 1 %", "right to 1 %", "right to 3 %", "right to 10 %",
        "off by a factor of at most 1.1", "off by a factor of at most 1.8", "off by a factor of at most 20",
    ]  # fmt: skip
