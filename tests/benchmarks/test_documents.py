"""Figures in documents are those of the result files, and result files say where they are from."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cited import UnknownFigureError, names_of, with_figures
from benchmarks.documents import RESULTS, ROOT, documents, written

FILES = sorted(RESULTS.glob("*.json"))
TABLE = {"header": ["policy", "asleep", "a day"], "rows": [["CES", "87.3", "0.57x"], ["rule", "90.2", "1,000 (54)"]]}
FOUND = {
    "load": {"all": {"p99_ms": 38.804, "seconds": 0.03}},
    "tables": [TABLE],
    "runs": [{"key": "testbed", "jobs": 1234567}, {"name": "a/b", "share": 0.125}],
}


def cited(text: str) -> str:
    return with_figures(text, {"x": FOUND}.__getitem__)


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_has_the_figures_of_the_result_files(document: Path) -> None:
    text = document.read_text()

    assert written(document, text) == text, "run `make figures`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_result_file_names_command_machine_and_a_commit_that_exists(path: Path) -> None:
    found = json.loads(path.read_bytes())
    commits = set(values_of(found, "commit"))

    assert all(any(values_of(found, key)) for key in ("command", "machine"))
    assert all(commits)
    if has_history():
        assert {commit for commit in commits if not is_commit(commit.rstrip("+"))} == set()


def test_a_record_by_hand_says_so_and_when() -> None:
    records = json.loads((RESULTS / "by_hand.json").read_bytes())["figures"]

    for name, record in records.items():
        missing = {"source", "date", "commit", "command", "machine"} - {key for key, value in record.items() if value}
        assert missing == set(), name


def test_every_record_by_hand_is_cited() -> None:
    records = json.loads((RESULTS / "by_hand.json").read_bytes())["figures"]
    texts = "".join(path.read_text() for path in documents())

    assert [name for name in records if f"by_hand:{name}/" not in texts] == []


def test_a_number_is_replaced_and_keeps_its_form() -> None:
    assert cited("took 9<!--x:load/all/p99_ms--> ms, 1.25<!--x:load/all/p99_ms-->.") == (
        "took 39<!--x:load/all/p99_ms--> ms, 38.80<!--x:load/all/p99_ms-->."
    )
    assert cited("1,000<!--x:runs/testbed/jobs--> 5000<!--x:runs/testbed/jobs-->").split()[0].startswith("1,234,567<")
    assert cited("5000<!--x:runs/testbed/jobs-->").startswith("1234567<")
    assert cited("12 %, 10<!--x:load/all/seconds*1000--> ms").startswith("12 %, 30<")


def test_a_cell_of_a_table_is_found_by_row_and_column() -> None:
    assert cited("1.0<!--x:tables/0/CES/asleep-->").startswith("87.3<")
    assert cited("7<!--x:tables/0/rule/a day#2-->").startswith("54<")
    assert cited("0.1<!--x:runs/a/b/share-->").startswith("0.1<")


def test_a_table_is_written_whole() -> None:
    text = "before\n\n<!--table x:tables/0-->\nold\n<!--end-->\n\nafter\n"

    once = cited(text)

    assert once.startswith("before\n\n<!--table x:tables/0-->\n| policy | asleep | a day |\n")
    assert once.endswith("| rule | 90.2 | 1,000 (54) |\n<!--end-->\n\nafter\n")
    assert cited(once) == once


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1<!--x:load/none-->", "no 'none'; there are all"),
        ("1<!--x:load/all-->", "not a number"),
        ("1<!--x:tables/0/CES/a day#3-->", "has 1 numbers"),
        ("fast <!--x:load/all/p99_ms-->", "no number directly in front"),
    ],
)
def test_a_mark_that_nothing_answers_is_an_error(text: str, words: str) -> None:
    with pytest.raises(UnknownFigureError, match=words):
        cited(text)


def test_names_of_all_marks_are_found() -> None:
    assert sorted(names_of("1<!--a:b--> 2<!--c:d#2-->\n<!--table e:f-->\n<!--end-->\n")) == ["a", "c", "e"]


def values_of(found: Any, key: str) -> Iterator[Any]:
    """All values of that key, at any depth."""
    match found:
        case dict():
            for name, value in found.items():
                if name == key:
                    yield value
                else:
                    yield from values_of(value, key)
        case list():
            for one in found:
                yield from values_of(one, key)


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def has_history() -> bool:
    """False in an archive without .git, and in a shallow clone."""
    return git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"


def is_commit(name: str) -> bool:
    """Whether it belongs to this history: a commit that was rewritten is still here, and in no other clone."""
    return git("merge-base", "--is-ancestor", name, "HEAD").returncode == 0
