"""What the documents name exists."""

import re
import subprocess
from pathlib import Path

import pytest

from farside.config.document import table_of, with_tables
from farside.config.load import kinds
from farside.config.settings import settings_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")))

# `daemon/headroom.py`, `Makefile`, `docs/` in backticks; [text](docs/papers.md) in links
_IN_BACKTICKS = re.compile(r"`([\w.-]+(?:/[\w.*-]+)*/?)`")
_IN_LINKS = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
_LOOKS_LIKE_A_FILE = re.compile(r".*/.*|.*\.(py|c|h|md|toml|txt|sh|in)$|Makefile")


def outside_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_exist(document: Path) -> None:
    text = outside_code(document.read_text())

    named = {name for name in _IN_BACKTICKS.findall(text) if _LOOKS_LIKE_A_FILE.fullmatch(name)}
    missing = {name for name in named if not is_there(document, name)}
    broken = {name for name in _IN_LINKS.findall(text) if not (document.parent / name).exists()}

    assert missing == set()
    assert broken == set()


def is_there(document: Path, name: str) -> bool:
    # Paths are meant from the top, from the document's own folder, or from the package.
    places = (ROOT, document.parent, ROOT / "src/farside")
    return any(any(place.glob(name.rstrip("/"))) for place in places) or is_made_by_use(name)


def is_made_by_use(name: str) -> bool:
    """A file of the running system, such as daemon.toml in /etc/farside, or one that the build makes."""
    made = {
        "daemon.toml",
        "blockdev.toml",
        "agent.toml",
        "manager.toml",
        "manager.json",
        "slurm.toml",
        "serving.toml",
        "peers.toml",
        "daemon.d/",
        "blockdev.d/",
        ".venv/bin/farside",
    }
    return name in made or name.startswith("build/")


def test_every_make_target_in_the_readme_exists() -> None:
    targets = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))

    for target in targets:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "No rule to make target" not in done.stderr


def test_the_operating_manual_has_the_tables_of_settings_as_they_are_declared() -> None:
    manual = (ROOT / "docs/operating.md").read_text()

    assert with_tables(manual) == manual, "docs/operating.md is behind the settings: run `make settings-table`"


@pytest.mark.parametrize("program", kinds())
def test_every_setting_is_in_its_table_with_its_meaning(program: str) -> None:
    table = table_of(kinds()[program])

    assert [line for line in table.splitlines()[2:] if line.count(" | ") != 3 or line.endswith("|  |")] == []
    assert table.count("\n| `") == len(settings_of(kinds()[program]))


def test_every_paper_key_in_the_sources_is_explained() -> None:
    explained = set(re.findall(r"^\*\*\[(\w+)\]\*\*", (ROOT / "docs/papers.md").read_text(), re.MULTILINE))

    sources = [
        path for name in ("daemon", "blockdev", "kmod_shim", "scheduler") for path in ROOT.glob(f"{name}/**/*.py")
    ]
    cited = {key for path in sources for key in re.findall(r"\[([a-z]+) §", path.read_text())}

    assert cited <= explained
