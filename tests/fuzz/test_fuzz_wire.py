"""A donor whose data connections say anything: `fuzz_wire.c`, with the engine's own sources, for a moment."""

import struct
from pathlib import Path

import pytest

from tests.fuzz.test_fuzz_nbd import COMPILE_TIMEOUT_S, ENGINE, FLAGS, FUZZ_S, HERE, RUN_TIMEOUT_S, compiler, run

PARTS = ("export", "conns", "thread", "fault", "verbs_none")
REQUEST = struct.Struct("<IHHIIQQQ")
MAGIC = 0x31515246
READ, WRITE = 1, 2
SLAB_BYTES = 1 << 21
OWN, OTHERS = 3, 4
TOKEN = 0x1122334455667788


def request(kind: int, *, lease: int = OWN, offset: int = 0, length: int = 4096, token: int = TOKEN, flags: int = 0,
            data: bytes = b"") -> bytes:  # fmt: skip
    """One request as a borrower sends it."""
    return REQUEST.pack(MAGIC, kind, flags, lease, len(data) or length, offset, token, 1) + data


def conversations() -> list[bytes]:
    """Sound ones, and some that reach for what is not theirs."""
    page = bytes(range(256)) * 16
    sound = request(WRITE, data=page) + request(READ)
    return [
        sound,
        request(READ, offset=SLAB_BYTES - 4096, length=8192) + sound,
        request(READ, offset=2**64 - 4096) + sound,
        request(WRITE, lease=OTHERS, data=page) + request(WRITE, lease=OTHERS, token=TOKEN + 1, data=page),
        request(READ, lease=65535) + request(READ, lease=2**32 - 1) + request(READ, flags=1),
        request(WRITE, length=SLAB_BYTES) + page,
        request(77) + sound,
    ]


@pytest.mark.long
def test_no_borrower_can_upset_the_donor_or_reach_anothers_slab(tmp_path: Path) -> None:
    fuzzer = tmp_path / "fuzz_wire"
    run(compiler(tmp_path), *FLAGS, f"-I{ENGINE}", HERE / "fuzz_wire.c", *(ENGINE / f"{part}.c" for part in PARTS),
        "-lpthread", "-o", fuzzer, cwd=tmp_path, timeout_s=COMPILE_TIMEOUT_S)  # fmt: skip
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, said in enumerate(conversations()):
        for manner in (0, 1):
            (corpus / f"{number}-{manner}").write_bytes(bytes([manner]) + said)

    told = run(fuzzer, corpus, f"-max_total_time={FUZZ_S}", "-max_len=16384", "-len_control=0", "-timeout=60",
        cwd=tmp_path, timeout_s=RUN_TIMEOUT_S)  # fmt: skip

    assert "Done" in told
