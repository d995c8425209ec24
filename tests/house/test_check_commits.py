"""The check of new commits' messages."""

import subprocess
from pathlib import Path

import pytest

from tools import check_commits
from tools.check_commits import new_messages, problems

GOOD = "agent: say when a port's error counter is full\n\nA full counter no longer grows.\n"


def git(folder: Path, *argv: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run(("git", "-C", str(folder), *who, *argv), check=True, capture_output=True, text=True).stdout


def repository(folder: Path, *messages: str) -> str:
    """A repository with these commits, the first of which is old; its name."""
    git(folder, "init", "-q")
    for message in messages:
        git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-list", "--max-parents=0", "HEAD").strip()


def run(root: Path, base: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(check_commits, "BASE", base)
    monkeypatch.setattr("sys.argv", ["check_commits", str(root)])
    return check_commits.main()


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (GOOD, ""),
        ("slurm/desk: a job that has no node waits\n\nWhy.", ""),
        (f"docs: {'x' * 54}\n\nWhy.", ""),
        ("docs: a link\n\nhttps://example.com/" + "x" * 80, ""),
        (f"docs: {'x' * 55}\n\nWhy.", "has 61 characters"),
        ("Say when a port is full\n\nWhy.", "does not begin with an area"),
        ("agent:say when a port is full\n\nWhy.", "does not begin with an area"),
        ("agent: say when a port is full", "has no body"),
        ("agent: say when a port is full\nWhy.", "has no blank line"),
        ("agent: say when a port is full\n\n" + "why " * 19, "a line of 76 characters"),
    ],
)
def test_a_message_is_as_it_should_be_or_what_is_wrong_is_said(message: str, problem: str) -> None:
    found = list(problems(message))

    assert len(found) == bool(problem)
    assert all(problem in one for one in found)


def test_only_commits_after_the_base_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = repository(tmp_path, "An old one of no form", GOOD)
    assert run(tmp_path, base, monkeypatch) == 0
    assert "1 new commit messages are as they should be" in capsys.readouterr().out

    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "A new one of no form\n\nWhy.")

    assert run(tmp_path, base, monkeypatch) == 1
    assert "'A new one of no form' does not begin with an area" in capsys.readouterr().out


def test_a_tree_without_history_passes_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = repository(tmp_path, "An old one", "A new one")
    exported = tmp_path / "exported"
    exported.mkdir()

    assert run(exported, base, monkeypatch) == 0
    assert "there is no git history here" in capsys.readouterr().out


def test_a_shallow_clone_passes(tmp_path: Path) -> None:
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    whole.mkdir()
    base = repository(whole, "An old one", "A new one")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{whole}", str(shallow))

    assert new_messages(whole, base) is not None
    assert new_messages(shallow, base) is None
