"""The package's /usr/bin/farside: also the manager's parts, which are spawned, start by it."""

import runpy
import subprocess
import sys
from pathlib import Path

from tests.live.manager import Manager

BUILDER = Path(__file__).parents[2] / "tools/build_deb.py"


def test_a_manager_that_the_package_s_launcher_starts_gets_ready(tmp_path: Path) -> None:
    launcher = tmp_path / "farside"
    launcher.write_text(runpy.run_path(str(BUILDER))["LAUNCHER"])
    manager = Manager(tmp_path / "m")
    told = [word for name, value in manager.settings.items() for word in ("--set", f"{name}={value}")]

    with (tmp_path / "m/log").open("ab") as log:
        argv = [sys.executable, str(launcher), "manager", "-c", "/dev/null", *told]
        manager.process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        manager.wait_ready()
        assert "RuntimeError" not in manager.log()
    finally:
        manager.stop()
