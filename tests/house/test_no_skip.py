"""FARSIDE_NO_SKIP, by which `make test-cluster` fails where it would prove less than it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = {
    "a test": "import pytest\ndef test_a():\n    pytest.skip('no Slurm')\n",
    "a mark": "import pytest\n@pytest.mark.skipif(True, reason='no Slurm')\ndef test_a(): ...\n",
    "a file": "import pytest\npytest.importorskip('no_such_module', reason='no Slurm')\ndef test_a(): ...\n",
}


def run_pytest(folder: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own, with the conftest that all tests share."""
    file = folder / "test_it.py"
    file.write_text(text)
    argv = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "tests.conftest", "-p", "no:cacheprovider"]
    kept = {name: value for name, value in os.environ.items() if name != "FARSIDE_NO_SKIP"}
    return subprocess.run(
        [*argv, file], cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("text", SKIPPED.values(), ids=SKIPPED)
def test_what_is_skipped_fails_with_its_reason_where_nothing_may_be(text: str, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, text, FARSIDE_NO_SKIP="1")

    assert done.returncode != 0
    assert "FARSIDE_NO_SKIP forbids it" in done.stdout
    assert "no Slurm" in done.stdout


def test_elsewhere_it_is_skipped(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, SKIPPED["a test"]).returncode == 0


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.xfail\ndef test_a():\n    assert False\n"

    assert run_pytest(tmp_path, text, FARSIDE_NO_SKIP="1").returncode == 0
