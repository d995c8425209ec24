"""An Aggregator whose lanes say anything: `fuzz_lane.c`, with the engine's own sources, for a moment.

The seeds are conversations as members and other Aggregators have them.
"""

import struct
from pathlib import Path

import pytest

from tests.fuzz.test_fuzz_nbd import COMPILE_TIMEOUT_S, ENGINE, FLAGS, FUZZ_S, HERE, RUN_TIMEOUT_S, compiler, run

PARTS = (
    "chunk", "reduce", "lane", "aggregator", "aggregator_control", "aggregator_move", "aggregator_threads", "kv",
    "kv_lanes", "kv_wait", "thread", "aggregator_rdma", "fault", "export", "conns", "verbs_none",
)  # fmt: skip
FRAME = struct.Struct("<IHHIIQQQII")
MAGIC = 0x31415246
HAVE, PUSH, SEED, HYPER, ASK, PULL = range(1, 7)
COPY, LIFE, COPIED = range(32, 35)
NOTHING, KEEPS, FIRST, BEFORE = 1, 2, 8, 32
COUNTS = (5, 64, 1000)
EPOCH = 2


def frame(kind: int, chunk: int, *, flags: int = 0, iteration: int = 0, payload: int = 0, aux: int = 0) -> bytes:
    """One frame, with a payload of so many bytes."""
    return FRAME.pack(MAGIC, kind, flags, chunk, payload, iteration, EPOCH, aux, 0, 0) + bytes(payload)


def state_bytes(chunk: int) -> int:
    """Three arrays of float32, each on cache lines of its own."""
    return 3 * (-(-4 * COUNTS[chunk] // 64) * 64)


def conversations() -> list[bytes]:
    """What a lane begins with, and how it may go on."""
    every = range(len(COUNTS))
    pushes = b"".join(frame(PUSH, chunk, iteration=1, payload=4 * COUNTS[chunk]) for chunk in every)
    return [
        b"".join(frame(HAVE, chunk) for chunk in every) + pushes,
        b"".join(frame(HAVE, chunk) + frame(PUSH, chunk, iteration=1) for chunk in every),
        b"".join(frame(HAVE, chunk, flags=NOTHING) for chunk in every) + pushes,
        b"".join(frame(HAVE, chunk, flags=KEEPS) for chunk in every)
        + b"".join(frame(SEED, chunk, flags=FIRST, payload=4 * COUNTS[chunk]) for chunk in every)
        + frame(HYPER, 0, iteration=1, payload=56) + pushes,
        b"".join(frame(SEED, chunk, payload=state_bytes(chunk)) for chunk in every)
        + b"".join(frame(kind, 0, iteration=1) for kind in (ASK, PULL)),
        b"".join(
            frame(COPY, chunk, flags=flags, iteration=3, payload=state_bytes(chunk))
            for chunk in every for flags in (BEFORE, 0)
        ),
        b"".join(frame(COPY, chunk, iteration=3) for chunk in every),
        frame(LIFE, 0, aux=7) + b"".join(frame(COPIED, chunk) for chunk in every),
    ]  # fmt: skip


@pytest.mark.long
def test_no_lane_can_upset_the_aggregator_and_another_job_trains_on(tmp_path: Path) -> None:
    fuzzer = tmp_path / "fuzz_lane"
    run(compiler(tmp_path), *FLAGS, "-ffp-contract=off", f"-I{ENGINE}", HERE / "fuzz_lane.c",
        *(ENGINE / f"{part}.c" for part in PARTS), "-lpthread", "-lm", "-o", fuzzer, cwd=tmp_path,
        timeout_s=COMPILE_TIMEOUT_S)  # fmt: skip
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, said in enumerate(conversations()):
        for manner in range(128):
            (corpus / f"{number}-{manner}").write_bytes(bytes([manner]) + said)

    told = run(fuzzer, corpus, f"-max_total_time={FUZZ_S}", "-max_len=16384", "-len_control=0", "-timeout=60",
        cwd=tmp_path, timeout_s=RUN_TIMEOUT_S)  # fmt: skip

    assert "Done" in told
