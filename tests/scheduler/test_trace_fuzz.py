"""Whatever is in a file, it gives jobs that a simulation can run, or one kind of error."""

import gzip
import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.sim.trace.format.row import MAX_DURATION_S, MAX_GPUS, MAX_TIME_S
from farside.scheduler.sim.trace.read import FORMATS, read_trace
from tests.support.trace_files import SAMPLES

formats = st.sampled_from(["auto", *FORMATS])
choices = st.sampled_from(["refuse", "skip"])
attempts = st.sampled_from(["whole", "each"])
# What breaks parsers: signs, quotes, separators, numbers that are none, halves of characters.
NASTY = [
    b"", b",", b"|", b'"', b"\n", b"\r", b"\x00", b"-", b"-1", b"nan", b"inf", b"1e308", b"1e999", b"9" * 400, b"0",
    b"\xff", b"\xe2\x80\xa8", b"\xd9\xa3", b"null", b"[", b"]", b"{", b"}", b"[[", b"\\ud800", b"None", b"1_0", b"0x1f",
    b"1969-12-31", b"9999-12-31 23:59:59", b"0001-01-01", b"2024-W01-1", b"24:00:00", b"true", b"\xef\xbb\xbf",
    b"\x1f\x8b",
]  # fmt: skip


def check(
    data: bytes, fmt: str, on_bad: Literal["refuse", "skip"], attempts: Literal["whole", "each"], *, packed: bool
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(gzip.compress(data, 1) if packed else data)
        try:
            trace = read_trace(path, fmt=fmt, on_bad=on_bad, attempts=attempts)
        except ConfigError:
            return
    order = [(entry.job.submit_s, entry.job.sequence) for entry in trace.jobs]
    assert order == sorted(order)
    assert len({sequence for _, sequence in order}) == len({entry.job.job_id for entry in trace.jobs}) == len(order)
    for entry in trace.jobs:
        assert 1 <= entry.job.gpus <= MAX_GPUS
        assert 0 <= entry.job.submit_s <= MAX_TIME_S
        assert 0 <= entry.duration_s <= MAX_DURATION_S
        assert 0 <= entry.job.skew <= 1
        assert 0 <= entry.job.cpus_per_gpu < math.inf
        assert 0 <= entry.job.memory_bytes_per_gpu < math.inf
        assert entry.job.limit_s >= 0
        assert entry.job.job_id.encode()  # can be written again
    assert bool(trace.skipped) == bool(trace.problems)
    assert trace.skipped == 0 or on_bad == "skip"


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300), formats, choices, attempts, st.booleans())
def test_any_bytes_give_jobs_or_a_config_error(
    data: bytes, fmt: str, on_bad: Literal["refuse", "skip"], attempts: Literal["whole", "each"], packed: bool
) -> None:
    check(data, fmt, on_bad, attempts, packed=packed)


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(NASTY) | st.binary(max_size=3)), max_size=4
    ),
    st.booleans(),
    choices,
    attempts,
)
def test_a_good_file_that_was_damaged_gives_jobs_or_a_config_error(
    name: str,
    changes: list[tuple[float, int, bytes]],
    is_named: bool,
    on_bad: Literal["refuse", "skip"],
    attempts: Literal["whole", "each"],
) -> None:
    data = SAMPLES[name].encode()
    for share, length, put in changes:
        at = int(share * len(data))
        data = data[:at] + put + data[at + length :]

    check(data, name if is_named else "auto", on_bad, attempts, packed=False)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(SAMPLES)), st.integers(0, 2**32), choices, attempts)
def test_cells_put_in_place_of_others_give_jobs_or_a_config_error(
    name: str, seed: int, on_bad: Literal["refuse", "skip"], attempts: Literal["whole", "each"]
) -> None:
    chance = random.Random(seed)
    separator = b"|" if name == "slurm" else b","
    lines = [line.split(separator) for line in SAMPLES[name].encode().split(b"\n")]
    for _ in range(chance.randint(1, 3)):
        line = chance.choice(lines[1:])
        line[chance.randrange(len(line))] = chance.choice(NASTY)

    check(b"\n".join(separator.join(line) for line in lines), name, on_bad, attempts, packed=False)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(SAMPLES)), st.floats(0, 1), st.floats(0, 1), st.integers(0, 255), choices)
def test_gzip_that_was_cut_or_flipped_gives_jobs_or_a_config_error(
    name: str, cut: float, flip: float, byte: int, on_bad: Literal["refuse", "skip"]
) -> None:
    data = bytearray(gzip.compress(SAMPLES[name].encode()))
    data[int(flip * (len(data) - 1))] = byte

    check(bytes(data[: max(1, int(cut * len(data)))]), "auto", on_bad, "whole", packed=False)
