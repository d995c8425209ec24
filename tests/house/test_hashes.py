"""What is installed is what was pinned: each pin has hashes, and pip is told to ask for them."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.hash_requirements import LEFT_OUT, hashed, hashes_by_pin, pins

ROOT = Path(__file__).parents[2]
PINNED = [path for path in sorted((ROOT / "requirements").glob("*.txt")) if path.name != LEFT_OUT]


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
def test_each_pin_has_the_hashes_of_its_version(path: Path) -> None:
    """[L7] A pin that was changed without `make hashes` fails here, and not on another's machine."""
    beside = (path.parent / "hashed" / path.name).read_text()
    blocks = hashes_by_pin(beside)

    assert pins(beside) == pins(path.read_text()), "make hashes"
    assert set(blocks) == {f"{name}=={version}" for name, version in pins(beside).items()}
    assert all(blocks.values())
    assert [line for line in beside.splitlines() if line.startswith("-r ")] == [
        line for line in path.read_text().splitlines() if line.startswith("-r ")
    ]


def test_make_installs_nothing_without_a_hash_but_what_only_tests_of_clusters_need() -> None:
    """[L7]"""
    installs = re.findall(r"\$\(PIP\) install (.*)", (ROOT / "Makefile").read_text())
    by_hash = re.search(r"^BY_HASH := (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)

    others = [
        words for words in installs if not re.match(r"\$\(BY_HASH\) (\$\(WHEELS\) )?-r requirements/hashed/", words)
    ]

    assert by_hash is not None
    assert "--require-hashes" in by_hash[1].split()
    assert others == ["--no-deps -r requirements/cluster.txt", "--no-deps --no-build-isolation -e ."]


def test_pip_refuses_a_file_that_is_not_the_one_that_was_pinned(tmp_path: Path) -> None:
    """[L7] A wheel of the right name and version, by an index that lies."""
    wheel = tmp_path / "files/idna-3.20-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("idna/__init__.py", "")
        made.writestr("idna-3.20.dist-info/METADATA", "Metadata-Version: 2.1\nName: idna\nVersion: 3.20\n")
        made.writestr("idna-3.20.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr("idna-3.20.dist-info/RECORD", "")
    pinned = hashed("idna==3.20\n", "a.txt", hashes_by_pin((ROOT / "requirements/hashed/runtime.txt").read_text()))
    (tmp_path / "a.txt").write_text(pinned)

    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "--isolated", "install", "--no-deps", "--require-hashes", "--no-index",
            f"--find-links={wheel.parent}", f"--target={tmp_path}/into", "-r", str(tmp_path / "a.txt"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "into/idna").exists()
