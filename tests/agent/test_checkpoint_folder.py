"""What a node finds out about a checkpoint folder: it is made, it is the same one, it may be written."""

import asyncio
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from farside.agent import messages as m
from farside.agent.run import probe as probes
from farside.agent.run.checkpoint_folder import clear_mark, see_mark, write_mark
from farside.agent.run.probe import AT_ONCE_MAX, Prober, look
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

    found = asyncio.run(Prober(run_as="starter", allowed=()).answer(probe))

    assert found == m.Probed(probe_id="1", problem=problem)


def test_a_node_that_runs_nothing_of_that_user_has_no_say(tmp_path: Path) -> None:
    probe = m.Probe(probe_id="1", step="see", user="root", path=str(tmp_path), mark=MARK)

    assert asyncio.run(Prober(run_as="submitter", allowed=()).answer(probe)).is_refused


def answered(monkeypatch: pytest.MonkeyPatch, script: str, *, path: str = "/a/b") -> m.Probed:
    """What the agent makes of a process that says what its user likes."""
    monkeypatch.setattr(probes, "look", lambda *_: ["/bin/sh", "-c", script])
    probe = m.Probe(probe_id="1", step="write", user=ME, path=path, mark=MARK)
    return asyncio.run(Prober(run_as="starter", allowed=()).answer(probe))


def test_the_process_that_looks_knows_nothing_of_the_agent_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of-root")

    told = answered(monkeypatch, "echo $SECRET $LANG")

    assert told.problem == "C.UTF-8"


def test_other_processes_of_its_user_have_no_access_to_the_process_that_looks(tmp_path: Path) -> None:
    *python, script, _, _, _, _ = look("see", "", MARK, "")
    asked = f"{script}\nprint(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE

    told = subprocess.run([*python, asked, "see", str(tmp_path), MARK, ""], capture_output=True, text=True, check=True)

    assert told.stdout.splitlines()[-1] == "0"


def test_an_answer_without_an_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(monkeypatch, "exec yes") == m.Probed(probe_id="1", problem="this node could not look")


@pytest.mark.parametrize(
    ("said", "made"),
    [("/a", "/a"), ("/a/b", "/a/b"), ("a", ""), ("/etc", ""), ("/a/b/c", ""), ("/a/../etc", ""), ("/a\\0", "")],
)
def test_only_the_folder_itself_or_one_that_it_lies_in_can_have_been_made(
    monkeypatch: pytest.MonkeyPatch, said: str, made: str
) -> None:
    assert answered(monkeypatch, f"printf '\\n{said}\\n'") == m.Probed(probe_id="1", made=made)


def test_one_user_s_folders_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probes, "TURN_LIMIT_S", 0.05)
    go = tmp_path / "go"
    os.mkfifo(go)
    monkeypatch.setattr(probes, "look", lambda *_: ["/bin/sh", "-c", f"read line < {go}"])

    async def scene() -> list[str]:
        prober = Prober(run_as="starter", allowed=())
        probe = m.Probe(probe_id="1", step="see", user=ME, path="/a", mark=MARK)
        asked = [asyncio.create_task(prober.answer(probe)) for _ in range(AT_ONCE_MAX + 1)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        end = os.open(go, os.O_RDWR)
        os.write(end, b"\n" * AT_ONCE_MAX)
        await asyncio.wait(asked)
        os.close(end)
        assert len(done) == 1
        return [task.result().problem for task in asked]

    problems = asyncio.run(scene())

    assert problems == [""] * AT_ONCE_MAX + ["too many folders of this user are looked at; try again"]
