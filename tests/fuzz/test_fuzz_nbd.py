"""NBD transmission against a client that sends anything: `fuzz_nbd.c`, with the engine's own sources, for a moment.

The seeds and words are made here: whole connections, and the numbers that mean something.
"""

import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.nbd_client import REQUEST, REQUEST_MAGIC, Command

HERE = Path(__file__).parent
ENGINE = HERE.parents[1] / "kmod_shim" / "engine"
# Without RDMA and TLS, whose places verbs_none.c and tls_none.c take: requests come the same way whatever carries them.
SOURCES = sorted(
    path
    for path in ENGINE.glob("*.c")
    if path.name.endswith("_none.c") or not path.name.startswith(("_ffi", "verbs", "tls"))
)
SANITIZERS = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
# -O1: a stack trace should be readable, and compiling takes longer than fuzzing.
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-g", "-O1", "-fno-strict-aliasing", *SANITIZERS)
LIBRARIES = ("-luring", "-lcrypto", "-lpthread")

COMPILE_TIMEOUT_S = 600
FUZZ_S = int(os.environ.get("FARSIDE_FUZZ_S", "5"))
"""How long each target runs; `make fuzz` says more."""
RUN_TIMEOUT_S = 120 + FUZZ_S
LENGTH_MAX = 1 << 14  # room for a few payloads as they are; what records stand for is larger

PAGE_BYTES = 4096
NO_DISK, RECORDS, WAITS, ONE_BY_ONE, REPLACE = 1, 2, 4, 8, 0x70
MANNERS = (0, WAITS, ONE_BY_ONE | WAITS, REPLACE, REPLACE | WAITS, REPLACE | ONE_BY_ONE | WAITS)


def request(command: int, offset: int = 0, length: int = 0, data: bytes = b"") -> bytes:
    """One request as it is on the wire."""
    return REQUEST.pack(REQUEST_MAGIC, 0, command, 0, offset, len(data) or length) + data


def streams() -> list[bytes]:
    """Connections as clients have them, and a few that no client should have."""
    page = bytes(range(256)) * 16
    write = request(Command.WRITE, PAGE_BYTES, data=page)
    read = request(Command.READ, 0, 3 * PAGE_BYTES)
    tidy = [write, read, request(Command.TRIM, 0, 2 * PAGE_BYTES), read, request(Command.FLUSH)]
    other = [request(Command.WRITE_ZEROES, PAGE_BYTES, PAGE_BYTES), request(Command.CACHE, 0, PAGE_BYTES), read]
    return [
        b"".join([*tidy, request(Command.DISC)]),
        b"".join([*other, *tidy]),
        write + request(99) + read + bytes(28),
        write + write[:100],
        request(Command.WRITE, 0, 1 << 20) + page,
        request(Command.READ, (4 << 20) - PAGE_BYTES, 2 * PAGE_BYTES) + request(Command.READ, 1, 1),
    ]


def records(rng: random.Random) -> bytes:
    """Records for thirty requests, of every kind and size."""
    return b"".join(
        bytes([rng.randrange(8), rng.randrange(4), 0, rng.randrange(256)])
        + struct.pack("<HBB", rng.choice([rng.randrange(1024), 510, 4]), rng.randrange(256), rng.randrange(256))
        for _ in range(30)
    )


def write_seeds(folder: Path) -> None:
    """The corpus to begin with: each stream, and some records, for both devices and in each manner."""
    folder.mkdir()
    rng = random.Random(1)
    kinds = [(0, stream) for stream in streams()] + [(RECORDS, records(rng)) for _ in range(6)]
    for n, (kind, data) in enumerate(kinds):
        for manner in MANNERS:
            for device in (0, NO_DISK):
                name = f"{n}-{manner | kind | device:02x}"
                (folder / name).write_bytes(bytes([manner | kind | device, rng.randrange(256)]) + data)


def write_words(path: Path) -> None:
    """What is worth trying as it is: the magic, commands with their flags, lengths and offsets."""
    words = [struct.pack(">I", REQUEST_MAGIC), *(struct.pack(">HH", flags, n) for flags in (0, 1) for n in range(8))]
    words += [struct.pack(">I", n * PAGE_BYTES) for n in (1, 2, 64, 512, 1024, 8192)]
    words += [struct.pack(">Q", n * PAGE_BYTES) for n in (1, 511, 512, 1023, 1024)]
    lines = ["".join(f"\\x{byte:02x}" for byte in word) for word in words]
    path.write_text("".join(f'"{line}"\n' for line in lines), encoding="ascii")


def run(*command: str | Path, cwd: Path, timeout_s: float) -> str:
    """Runs the command; what it printed is returned, or is the message when it fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, errors="replace",
        timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-8000:]}"
    return done.stderr


def compiler(folder: Path) -> str:
    """One that has libFuzzer; skips where there is none."""
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("clang is missing, and libFuzzer with it")
    empty = folder / "empty.c"
    empty.write_text("int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n ? 0 : 0; }\n")
    probe = [clang, "-fsanitize=fuzzer", str(empty), "-o", str(folder / "empty")]
    tried = subprocess.run(probe, capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("clang has no libFuzzer (Debian: apt-get install libclang-rt-14-dev)")
    return clang


def compiled(folder: Path) -> Path:
    """The fuzzer."""
    fuzzer = folder / "fuzz_nbd"
    run(compiler(folder), *FLAGS, f"-I{ENGINE}", HERE / "fuzz_nbd.c", *SOURCES, *LIBRARIES, "-o", fuzzer, cwd=folder,
        timeout_s=COMPILE_TIMEOUT_S)  # fmt: skip
    return fuzzer


@pytest.mark.long
def test_no_client_can_upset_the_engine_and_sound_requests_are_answered(tmp_path: Path) -> None:
    fuzzer = compiled(tmp_path)
    write_seeds(tmp_path / "corpus")
    write_words(tmp_path / "words")

    told = run(fuzzer, tmp_path / "corpus", f"-dict={tmp_path / 'words'}", f"-max_total_time={FUZZ_S}",
        f"-max_len={LENGTH_MAX}", "-len_control=0", "-timeout=60", cwd=tmp_path,
        timeout_s=RUN_TIMEOUT_S)  # fmt: skip

    assert "Done" in told
