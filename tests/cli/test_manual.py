"""Man pages and bash completion, made of the command line."""

import subprocess
from pathlib import Path

import pytest

from farside.cli.manual import completion, pages
from farside.config.load import kinds
from farside.config.settings import settings_of
from tests.support.programs import need, outcome
from tests.support.sandbox import farside

PAGES = {page.name: page for page in pages()}


def test_every_command_of_the_help_has_a_page() -> None:
    listed = outcome(farside("--help")).stdout.partition("Commands:")[2]
    commands = {line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "}

    assert commands
    assert {f"farside-{name}" for name in commands} <= set(PAGES)
    assert "farside-unit" not in PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_roff_has_nothing_to_say_against_a_page(name: str, tmp_path: Path) -> None:
    need("groff")
    path = tmp_path / name
    path.write_text(PAGES[name].text)

    done = outcome(["groff", "-man", "-ww", "-Tascii", "-z", str(path)])

    assert (done.status, done.stderr) == (0, "")


def test_every_setting_stands_in_its_page() -> None:
    text = PAGES["farside.toml"].text.replace("\\-", "-")

    for config in kinds().values():
        for name in settings_of(config):
            assert f".B {name}\n" in text


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sw"], ["swap"]),
        (["swap", "det"], ["detach"]),
        (["swap", "detach", "--wa"], ["--wait"]),
        (["daemon", "dr"], ["drain"]),
        (["--debug", "daemon", "--se"], ["--set"]),
    ],
)
def test_bash_completes_commands_and_options(words: list[str], offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "farside").write_text(completion())
    line = " ".join(["farside", *words])
    script = f'source "$1"; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _farside; echo "${{COMPREPLY[@]}}"'

    done = subprocess.run(
        ["bash", "-c", script, "-", str(tmp_path / "farside")], capture_output=True, text=True, check=False
    )

    assert (done.stdout.split(), done.stderr) == (offered, "")
