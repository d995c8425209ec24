"""The engine's C parts by themselves: links, donor, faults, disk, checksums, TLS and chunks, under ASan and UBSan.

Each `TEST(sentence)` of a C file beside this one is a test here. The files are compiled together with the engine's own
sources, with the sanitizers, once a run.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENGINE = HERE.parents[1] / "kmod_shim" / "engine"
PARTS = (
    "crc32c",
    "shm",
    "tcp",
    "fault",
    "disk",
    "conns",
    "export",
    "hedge",
    "thread",
    "verbs_none",
    "chunk",
    "reduce",
    "lane",
    "aggregator",
    "aggregator_control",
    "aggregator_move",
    "aggregator_rdma",
    "aggregator_threads",
    "kv",
    "kv_lanes",
    "kv_wait",
)
LIBRARIES = ("-luring", "-lcrypto", "-lpthread", "-lm")
# In front of the archive, whose verbs_none.o then has nothing to give. The libraries themselves are not linked.
RDMA_PROGRAMS = ("rdma", "aggregation_rdma")
RDMA_PARTS = ("verbs", "verbs_cm", "verbs_export", "verbs_pair", "verbs_registry")
RDMA_HEADER = Path("/usr/include/rdma/rdma_cma.h")
TLS_HEADER = Path("/usr/include/gnutls/gnutls.h")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-O0", "-ffp-contract=off", *SANITIZERS)

COMPILE_TIMEOUT_S = 120
RUN_TIMEOUT_S = 90
FUZZ_S = 5


def run(*command: str | Path, cwd: Path, timeout_s: float) -> None:
    """Runs the command; what it printed is the message when it fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-8000:]}"


def sentences() -> list[tuple[str, str]]:
    """Every (program, test) of the C files here, in the order of the files."""
    return [
        (source.stem, name)
        for source in sorted(HERE.glob("*.c"))
        for name in re.findall(r"^TEST\((\w+)\)", source.read_text(encoding="ascii"), re.MULTILINE)
    ]


class Programs:
    """The compiled C files; each is linked when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiler = os.environ.get("CC", "cc")
        for part in PARTS:
            self._cc("-c", ENGINE / f"{part}.c", "-o", f"{part}.o")
        run("ar", "rcs", "engine.a", *(f"{part}.o" for part in PARTS), cwd=folder, timeout_s=COMPILE_TIMEOUT_S)

    def _cc(self, *words: str | Path) -> None:
        run(*self.compiler.split(), *FLAGS, f"-I{ENGINE}", *words, cwd=self.folder, timeout_s=COMPILE_TIMEOUT_S)

    def path(self, name: str) -> Path:
        """Where the program of that C file is."""
        program = self.folder / name
        if not program.exists():
            self._cc(HERE / f"{name}.c", *self._rdma(name), *self._tls(name), "engine.a", *LIBRARIES, "-o", program)
        return program

    def _rdma(self, name: str) -> list[Path]:
        if name not in RDMA_PROGRAMS:
            return []
        if not RDMA_HEADER.exists():
            pytest.skip("rdma-core's headers are missing (Debian: libibverbs-dev, librdmacm-dev)")
        return [HERE / "fake_verbs.c", *(ENGINE / f"{part}.c" for part in RDMA_PARTS)]

    def _tls(self, name: str) -> list[Path | str]:
        if name != "tls":
            return []
        if not TLS_HEADER.exists():
            pytest.skip("GnuTLS's headers are missing (Debian: libgnutls28-dev)")
        return [ENGINE / "tls.c", "-lgnutls"]  # linked for its client; the engine's end loads it as always


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The C tests, compiled once a run."""
    return Programs(tmp_path_factory.mktemp("engine"))


@pytest.mark.parametrize(("program", "sentence"), sentences(), ids=[f"{where}-{what}" for where, what in sentences()])
def test_the_engine_keeps_its_word(program: str, sentence: str, programs: Programs, tmp_path: Path) -> None:
    executable = programs.path(program)

    run(executable, sentence, cwd=tmp_path, timeout_s=RUN_TIMEOUT_S)


@pytest.mark.long
def test_random_bytes_neither_crash_the_donor_nor_a_link(tmp_path: Path) -> None:
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("clang is missing, and libFuzzer with it")
    fuzzer = tmp_path / "fuzz_wire"
    sources = [ENGINE / f"{part}.c" for part in ("conns", "shm", "tcp", "thread", "verbs_none")]
    run(clang, *FLAGS, "-fsanitize=fuzzer", f"-I{ENGINE}", HERE / "fuzz_wire.c", *sources, "-lpthread", "-o", fuzzer,
        cwd=tmp_path, timeout_s=COMPILE_TIMEOUT_S)  # fmt: skip

    run(fuzzer, f"-max_total_time={FUZZ_S}", "-max_len=4096", cwd=tmp_path, timeout_s=FUZZ_S + RUN_TIMEOUT_S)
