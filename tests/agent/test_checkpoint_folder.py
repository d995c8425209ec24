"""What a node finds out about a checkpoint folder: it is made, it is the same one, it may be written."""

import asyncio
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from farside.agent import messages as m
from farside.agent.run.checkpoint_folder import clear_mark, see_mark, write_mark
from farside.agent.run.probe import answer, look
from tests.agent.node import ME

MARK = ".farside-probe-1"


def test_a_folder_that_is_not_there_is_made_and_the_mark_is_seen_by_others(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"

    problem, made = write_mark(str(folder), MARK)

    assert (problem, made) == ("", str(tmp_path / "a"))
    assert see_mark(str(folder), MARK) == ""
    assert os.listdir(folder) == [MARK]


def test_a_folder_without_the_mark_is_another_one(tmp_path: Path) -> None:
    assert "storage that all nodes share" in see_mark(str(tmp_path), MARK)


def test_after_a_no_nothing_is_left_of_what_was_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    _, made = write_mark(str(folder), MARK)

    assert clear_mark(str(folder), MARK, made) == ""

    assert list(tmp_path.iterdir()) == []


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kept").touch()
    _, made = write_mark(str(folder), MARK)

    clear_mark(str(folder), MARK, made)

    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kept"]


def test_a_path_through_a_file_is_the_reason_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert write_mark(str(tmp_path / "file" / "b"), MARK) == ("Not a directory", "")
    assert write_mark(str(tmp_path / "file"), MARK) == ("is no folder", "")
    assert see_mark(str(tmp_path / "nothing"), MARK) == "No such file or directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_it_is_the_user_s_right_that_counts_and_not_the_agent_s(tmp_path: Path) -> None:
    folder = tmp_path / "roots"
    folder.mkdir(mode=0o700)
    nobody = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))

    argv = look("see", str(folder), MARK, "")
    told = subprocess.run(
        argv, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[], capture_output=True, text=True, check=True
    )

    assert told.stdout.splitlines()[0] in ("the user may not read and write it", "Permission denied")


@pytest.mark.parametrize(("exists", "problem"), [(True, ""), (False, "No such file or directory")])
def test_an_agent_looks_in_a_process_of_its_own(tmp_path: Path, exists: bool, problem: str) -> None:
    folder = tmp_path if exists else tmp_path / "nothing"
    (tmp_path / MARK).touch()
    probe = m.Probe(probe_id="1", step="see", user=ME, path=str(folder), mark=MARK)

    found = asyncio.run(answer(probe, run_as="starter", allowed=()))

    assert found == m.Probed(probe_id="1", problem=problem)


def test_a_node_that_runs_nothing_of_that_user_has_no_say(tmp_path: Path) -> None:
    probe = m.Probe(probe_id="1", step="see", user="root", path=str(tmp_path), mark=MARK)

    assert asyncio.run(answer(probe, run_as="submitter", allowed=())).is_refused
