"""The package's /usr/bin/farside: also the manager's parts, which are spawned, start by it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.manager import Manager
from tools import build_deb


@pytest.mark.long
def test_a_manager_that_the_package_s_launcher_starts_gets_ready(tmp_path: Path) -> None:
    launcher = tmp_path / "farside"
    launcher.write_text(build_deb.LAUNCHER)
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


def test_an_interrupted_build_leaves_the_package_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/dpkg-deb"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor last; do :; done\nprintf torn >"$last"\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    package = tmp_path / "out/farside.deb"
    package.parent.mkdir()
    package.write_text("whole")

    with pytest.raises(SystemExit, match="dpkg-deb ended with 1"):
        build_deb._pack(tmp_path, package, ("-Zgzip",))

    assert [(one.name, one.read_text()) for one in package.parent.iterdir()] == [("farside.deb", "whole")]
