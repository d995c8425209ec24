"""Folders for temporary files: their names, and whose are removed."""

import re
from pathlib import Path

import pytest

from farside.agent.serving.partition import maker
from farside.agent.serving.partition.maker import make_folder, own_mark


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def left_by_one_that_was_killed() -> Path:
    """A folder of a process that is gone."""
    folder = make_folder("test")
    return folder.rename(folder.with_name(folder.name.replace(own_mark(), f"{2**22 - 1}-1")))


def test_what_a_process_that_was_killed_has_left_is_removed_by_the_next_one_of_the_host() -> None:
    left = left_by_one_that_was_killed()

    assert make_folder("test").exists()
    assert not left.exists()


def test_hosts_that_share_a_folder_for_temporary_files_remove_nothing_of_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = left_by_one_that_was_killed()
    monkeypatch.setattr(maker, "boot_id", lambda: "another host's")

    make_folder("test")

    assert left.exists()


def test_the_name_of_a_folder_is_short() -> None:
    assert re.fullmatch(rf"farside-test-[0-9a-f]{{8}}-{own_mark()}-\w{{8}}", make_folder("test").name)
