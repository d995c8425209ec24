"""Commands and what they print, as a document has them."""

from pathlib import Path

import pytest

from tests.vm.transcript import Command, File, agrees, section, steps

ROOT = Path(__file__).parents[2]
TEXT = """\
## Before
```console
d1# not this
```
## The hour
Words.

```console
all# install it
d1# make key
key: made
n1# look
ok   3 donors

### Settings
```

### Files
```toml
# /etc/a.toml on n1
size = 1
```
## After
"""


def test_a_section_has_its_commands_and_files_in_order() -> None:
    assert steps(section(TEXT, "## The hour")) == (
        Command(machine="all", command="install it"),
        Command(machine="d1", command="make key", prints=("key: made",)),
        Command(machine="n1", command="look", prints=("ok   3 donors", "", "### Settings")),
        File(machine="n1", path="/etc/a.toml", text="size = 1\n"),
    )


def test_a_heading_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no heading '## Nowhere'"):
        section(TEXT, "## Nowhere")


@pytest.mark.parametrize(
    ("block", "said"),
    [("console\nfarside status", "no command"), ("toml\nsize = 1", "not with its file")],
)
def test_a_block_without_its_machine_is_an_error(block: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        steps(f"```{block}\n```\n")


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        (["d1  up  4 slabs, 32 MiB"], "d1 up 12 slabs, 1.5 GiB\n"),
        (["lost  0", "out 0 B"], "lost 0\nout  0 B\n"),
        (["begins", "...", "ends"], "begins\nends\n"),
        (["begins", "...", "ends"], "begins\n\nmiddle\nends\n"),
        (["..."], ""),
        ([], "whatever\n"),
    ],
)
def test_what_differs_only_in_numbers_and_blanks_agrees(expected: list[str], printed: str) -> None:
    assert agrees(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        (["d1 up 4 slabs"], "d1 failed 4 slabs\n"),
        (["lost pages 0"], "lost pages 7\n"),
        (["one"], "one\ntwo\n"),
        (["one", "two"], "one\n"),
        (["begins", "...", "ends"], "begins\nmiddle\n"),
    ],
)
def test_another_word_or_line_does_not_agree(expected: list[str], printed: str) -> None:
    assert not agrees(expected, printed)


def test_the_first_hour_can_be_read() -> None:
    found = steps(section((ROOT / "docs/operating.md").read_text(), "## The first hour"))

    assert {step.machine for step in found} <= {"all", "d1", "n1"}
    assert sum(isinstance(step, Command) and bool(step.prints) for step in found) > 5
