"""``python -m benchmarks.serving.peer_environment``: Triton's core and perf_analyzer, in an environment of their own.

Triton's core comes in PyTriton's wheel, perf_analyzer in an old wheel of Triton's client; both find the libraries that
they want besides among PyTriton's.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.load import BUILD, BenchmarkError
from benchmarks.peer_install import run_install

VENV = BUILD / "peers" / "triton"
ROOT = Path(__file__).parents[2]
_PINS = ROOT / "requirements" / "hashed" / "peers.txt"
# perf_analyzer's names of libraries that PyTriton's wheel has under names of its own.
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


class PerfAnalyzer(NamedTuple):
    """The program, and the variables that it runs with."""

    program: Path
    environment: Mapping[str, str]


def install() -> Path:
    """The folder of the environment's packages; the first call installs them.

    Raises:
        BenchmarkError: They can't be installed here; pip's last line.
    """
    if not _is_there():
        run_install([sys.executable, "-m", "venv", "--clear", str(VENV)], "requirements/peers.txt")
        pip = [str(VENV / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_install(
            [*pip, "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", str(_PINS)], "requirements/peers.txt"
        )
        libraries = VENV / "lib" / "perf_analyzer"
        libraries.mkdir()
        for name, pattern in _LIBRARIES.items():
            found = sorted((packages() / "nvidia_pytriton.libs").glob(pattern))
            if not found:
                raise BenchmarkError(f"PyTriton's wheel has no {pattern}; requirements/peers.txt names another one")
            (libraries / name).symlink_to(found[0])
        _lay_out_backend()
        (VENV / "installed").write_bytes(_PINS.read_bytes())
    return packages()


def _lay_out_backend() -> None:
    """Puts the Python backend and its program for this version of Python into the folder where Triton looks."""
    theirs, backend = packages() / "pytriton" / "tritonserver", VENV / "backends" / "python"
    shutil.copytree(theirs / "backends" / "python", backend)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = theirs / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise BenchmarkError(f"PyTriton's wheel has no Python backend for Python {version}")
    program = Path(shutil.copy(stub, backend))
    program.chmod(0o755)


def packages() -> Path:
    """Where the environment's packages are, or would be."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return VENV / "lib" / version / "site-packages"


def perf_analyzer() -> PerfAnalyzer | None:
    """Triton's load generator; None: it is not installed."""
    if not _is_there():
        return None
    environment = {**os.environ, "LD_LIBRARY_PATH": str(VENV / "lib" / "perf_analyzer")}
    return PerfAnalyzer(VENV / "bin" / "perf_analyzer", environment)


def _is_there() -> bool:
    """Whether what is installed is what is pinned."""
    stamp = VENV / "installed"
    return stamp.is_file() and stamp.read_bytes() == _PINS.read_bytes()


def main() -> int:
    """Installs; the exit code."""
    try:
        print(f"Triton's core and perf_analyzer are in {install()}")
    except BenchmarkError as error:
        print(f"farside: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
