"""The engine with address and undefined-behaviour sanitizers, through the tests that others wrote for it.

A second copy of the package is built into a folder of this test, and stands before the first in PYTHONPATH; the normal
build is not touched. libasan must be there before Python is, so it is preloaded. Leaks are Python's own: not looked at.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 600
RUN_TIMEOUT_S = 900

# Rigs in the test's own process. What runs a sandbox measures many processes more than it does the engine, and
# takes minutes with sanitizers in each of them.
WITHOUT = (
    "processes",
    "wrong_key",
    "killed",
    "lying_donor_process",
    "lying_donor_counted",
    "relay_process",
    "strangers_process",
)
AGGREGATION = ("codes", "data_path", "hold", "lane_faults", "moves", "refusals", "state", "threads")
RIGS = {
    "pages": ("tests/fault", "tests/property", *(f"--ignore=tests/fault/test_{name}.py" for name in WITHOUT)),
    "gradients": ("tests/engine/test_reduce.py", *(f"tests/aggregation/test_{name}.py" for name in AGGREGATION)),
}

pytestmark = pytest.mark.timeout(BUILD_TIMEOUT_S + RUN_TIMEOUT_S + 60)


def libraries() -> list[str]:
    """The sanitizers' run-time libraries, to be preloaded; skips where the compiler has none."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing")
    found = []
    for name in ("libasan.so", "libubsan.so"):
        told = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        found.append(told.stdout.strip())
    if not all(Path(path).is_absolute() for path in found):
        pytest.skip("gcc has no sanitizer libraries (Debian: they come with libgcc-12-dev)")
    return found


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the package with a sanitized engine."""
    libraries()
    folder = tmp_path_factory.mktemp("sanitized")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", folder / "build", "--build-lib", folder / "lib"],
        cwd=ROOT, env=os.environ | {"FARSIDE_SANITIZE": "1"}, capture_output=True, text=True,
        timeout=BUILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    yield folder / "lib"
    shutil.rmtree(folder)


def environment(overlay: Path, reports: Path) -> dict[str, str]:
    """Where a run in the overlay finds its engine, and leaves its reports."""
    return os.environ | {
        "LD_PRELOAD": " ".join(libraries()),
        "PYTHONPATH": str(overlay),
        # Reports go to files, because a test may keep its stderr to itself.
        "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:log_path={reports}/asan",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports}/ubsan",
    }


@pytest.mark.long
@pytest.mark.parametrize("what", RIGS)
def test_the_sanitizers_find_nothing_in_what_the_engine_goes_through(overlay: Path, tmp_path: Path, what: str) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    env = environment(overlay, reports)
    origin = "import farside.kmod_shim.engine._ffi as engine; print(engine.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", origin], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(str(overlay)), "the engine that is tested is not the sanitized one"

    # In a folder of its own, below which the paths of sockets are not too long.
    with tempfile.TemporaryDirectory(prefix="farside-", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={folder}/t",
             *RIGS[what]],
            cwd=ROOT, env=env, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip

    said = "".join(path.read_text(errors="replace")[:8000] for path in sorted(reports.iterdir()))
    assert not said, said
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
