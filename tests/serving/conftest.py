"""What tests of serving share."""

import os
import sys
from pathlib import Path

import pytest

from farside.agent.serving.partition.mps_control import CONTROL
from tests.serving.nvidia_stand_in import PROGRAM


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control program's file of how it was started."""
    seen, program = tmp_path / "seen", tmp_path / CONTROL
    program.write_text(PROGRAM.format(python=sys.executable, seen=seen))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return seen
