"""Where the peers come from: gloo is in the PyTorch of `make venv-cluster`, ps-lite in MXNet's wheel.

MXNet 1.9.1 is the last one, of 2021; its NumPy is that of its time, so it has a virtual environment of its own.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.load import BUILD, BenchmarkError
from benchmarks.peer_install import run_install

PACKAGES = ("mxnet==1.9.1", "numpy==1.23.5")
VENV = BUILD / "peers" / "ps-lite"


def gloo_python() -> str:
    """The Python that has torch.

    Raises:
        BenchmarkError: This one has not.
    """
    if find_spec("torch") is None:
        raise BenchmarkError("there is no PyTorch here; `make bench-aggregation` installs it")
    return sys.executable


def pslite_python() -> str:
    """The Python that has MXNet, installed by the first call.

    Raises:
        BenchmarkError: It can't be installed.
    """
    python = VENV / "bin" / "python"
    if not (VENV / "installed").exists():
        run_install([sys.executable, "-m", "venv", "--clear", str(VENV)], " ".join(PACKAGES))
        run_install(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
            " ".join(PACKAGES),
        )
        (VENV / "installed").touch()
    return str(python)


def version_of(python: Path | str, module: str) -> str:
    """For the record."""
    command = [str(python), "-c", f"import importlib.metadata as m; print(m.version({module!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
