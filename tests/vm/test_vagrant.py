"""The Vagrantfile, as far as vagrant can judge it without making machines."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import need

FOLDER = Path(__file__).parents[2] / "vagrant"
BROKEN = '$donors = "two"\n'


def validate(tmp_path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    need("vagrant")
    quiet = {"VAGRANT_CHECKPOINT_DISABLE": "1", "VAGRANT_BOX_UPDATE_CHECK_DISABLE": "1"}
    homes = {"VAGRANT_HOME": str(tmp_path / "home"), "VAGRANT_DOTFILE_PATH": str(tmp_path / "dot")}
    return subprocess.run(
        ["vagrant", "validate", "--ignore-provider"],
        cwd=folder,
        env={**os.environ, **quiet, **homes},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def copy_of(folder: Path, settings: str) -> Path:
    folder.mkdir()
    (folder / "Vagrantfile").write_text((FOLDER / "Vagrantfile").read_text())
    (folder / "provision").symlink_to(FOLDER / "provision")
    (folder / "config.rb").write_text(settings)
    return folder


@pytest.mark.long
def test_the_vagrantfile_is_valid(tmp_path: Path) -> None:
    done = validate(tmp_path, FOLDER)

    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["Vagrantfile validated successfully."])


@pytest.mark.long
def test_sizes_can_be_overridden_and_a_wrong_one_is_noticed(tmp_path: Path) -> None:
    good = validate(tmp_path, copy_of(tmp_path / "good", (FOLDER / "config.rb.example").read_text() + "$donors = 3\n"))
    bad = validate(tmp_path, copy_of(tmp_path / "bad", BROKEN))

    assert (good.returncode, "donor3" in good.stdout) == (0, True)
    assert bad.returncode != 0


def test_the_example_names_every_setting_with_its_default() -> None:
    setting = re.compile(r"^(\$\w+ = \S+)", re.MULTILINE)

    assert setting.findall((FOLDER / "config.rb.example").read_text()) == setting.findall(
        (FOLDER / "Vagrantfile").read_text()
    )


@pytest.mark.parametrize("script", sorted(FOLDER.glob("provision/*.sh")), ids=lambda path: path.name)
def test_every_script_is_used_and_can_be_run(script: Path) -> None:
    used = (FOLDER / "Vagrantfile").read_text()

    assert os.access(script, os.X_OK)
    assert f"provision/{script.name}" in used or script.stem in ("donor", "borrower")
