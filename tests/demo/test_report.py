"""The demo's verdict: what it takes to be good, and what it says when it is not."""

import json
from dataclasses import replace
from typing import Any

import pytest

from farside.cli.demo.load import Tally, fio_tally
from farside.cli.demo.report import Outcome, faults, rows

GIB = 1 << 30
GOOD = Outcome(
    tally=Tally(verified_bytes=2 * GIB, written_bytes=2 * GIB, longest_s=0.5, rounds=10),
    counters={"evictions": 1, "migrations": 2, "failovers": 1, "takeovers": 2, "migrated_pages": 8192},
    pages_in={"remote": 100, "disk": 10, "replica": 0},
    pages_out={"remote": 100, "disk": 100},
    took_s=30.0,
)


def test_a_demo_in_which_everything_happened_is_good() -> None:
    assert faults(GOOD) == ()


@pytest.mark.parametrize("name", ["evictions", "migrations", "failovers", "takeovers"])
def test_what_did_not_happen_is_named(name: str) -> None:
    found = replace(GOOD, counters={**GOOD.counters, name: 0})

    assert faults(found) == (f"no {name} happened",)


def test_too_little_verified_is_a_fault() -> None:
    found = replace(GOOD, tally=replace(GOOD.tally, verified_bytes=2 * GIB - 1))

    assert "less than 2 GiB" in faults(found)[0]


def test_a_wrong_byte_is_a_fault_whatever_else_happened() -> None:
    found = replace(GOOD, tally=replace(GOOD.tally, error="crc32c: verify failed"))

    assert "crc32c: verify failed" in faults(found)[0]


def test_a_lost_page_is_a_fault() -> None:
    assert faults(replace(GOOD, counters={**GOOD.counters, "lost_pages": 1})) == ("pages were lost",)


def test_the_table_leaves_out_places_that_served_nothing() -> None:
    names = [row[0] for row in rows(GOOD)]

    assert "read from remote" in names
    assert "read from replica" not in names


def test_a_report_of_fio_is_understood() -> None:
    job: dict[str, Any] = {
        "error": 0,
        "read": {"io_bytes": 1000, "clat_ns": {"max": 5_000_000}},
        "write": {"io_bytes": 2000, "clat_ns": {"max": 7_000_000}},
    }

    tally = fio_tally(json.dumps({"jobs": [job]}))

    assert tally == Tally(verified_bytes=1000, written_bytes=2000, longest_s=0.007, rounds=1)


def test_tallies_add_up_and_keep_the_first_error() -> None:
    total = Tally(verified_bytes=1, longest_s=2.0, error="a").plus(Tally(verified_bytes=2, longest_s=1.0, error="b"))

    assert total == Tally(verified_bytes=3, longest_s=2.0, error="a")
