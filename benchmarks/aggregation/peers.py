"""Where the peers come from: gloo is in the PyTorch of `make venv-cluster`, ps-lite in MXNet's wheel.

MXNet 1.9.1 is the last one, of 2021; its NumPy is that of its time, so it has a virtual environment of its own.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.load import BUILD, BenchmarkError

PACKAGES = ("mxnet==1.9.1", "numpy==1.23.5")
VENV = BUILD / "peers" / "ps-lite"
INSTALL_S = 600.0


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
        _run([sys.executable, "-m", "venv", "--clear", str(VENV)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES])
        (VENV / "installed").touch()
    return str(python)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{command[0]} took more than {INSTALL_S:.0f} s") from None
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise BenchmarkError(f"{' '.join(PACKAGES)} can't be installed: {told[-1] if told else 'no word'}")


def version_of(python: Path | str, module: str) -> str:
    """For the record."""
    command = [str(python), "-c", f"import importlib.metadata as m; print(m.version({module!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
