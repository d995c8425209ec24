"""The language of what users read: settings, help, and the first lines of docstrings."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from farside.cli.app import app
from farside.config.load import kinds
from farside.config.settings import Declared, settings_of

ROOT = Path(__file__).parents[2]

# What no text has: the name of the rule, and what it looks like. Each is a habit of this project's past that is not
# English, or not at once understood; correct uses of the same words ("no more than", "something else") are let through.
RULES = {
    "begins with Of": r"(?:^|(?<=[.!?] ))Of\b",
    "begins with The same": r"(?:^|(?<=[.!?] ))The same\b",
    "begins with Likewise": r"(?:^|(?<=[.!?] ))Likewise\b",
    "begins with As `x`": r"(?:^|(?<=[.!?] ))As `",
    "begins with It, without its noun": r"^It\b",
    "bare else": r"(?<!thing )(?<!body )(?<!one )(?<!where )(?<!what )(?<!What )(?<!who )\belse\b",
    "so many": r"\bso many\b(?!(?: \w+){0,2} that\b)",
    "no more": r"\bno more\b(?! than\b)",
    "is no X": r"(?<!there )(?<!There )\bis no (?!longer\b|more than\b|less than\b)",
    "stands, for is": r"\b(?:stands?|stood)\b(?! for\b| still\b)",
    "tells, for reports": r"\b(?:tells?|told)\b",
}
# House words that users do not know; settings and help have the word of the field.
HOUSE_WORDS = {
    "brain": "scheduler process",
    "shepherd": "task supervisor",
    "nursery": "fork server",
    "mend": "fix",
    "mended": "fixed",
    "toll": "preemption time",
}
# First lines of docstrings that break a rule, by top folder. The numbers may only fall: write better ones, and lower
# the number here.
KNOWN: dict[str, int] = {}


def broken_rules(text: str) -> list[str]:
    # Names of code, such as an argument ``told``, are no words of the sentence.
    words = re.sub(r"`+[^`]*`+", "`x`", " ".join(text.split()))
    return [name for name, pattern in RULES.items() if re.search(pattern, words)]


def house_words(text: str) -> list[str]:
    return [
        f"{word} (write: {better})" for word, better in HOUSE_WORDS.items() if re.search(rf"\b{word}\b", text, re.I)
    ]


def meanings(where: str, config: type[Declared]) -> Iterator[tuple[str, str]]:
    for name, setting in settings_of(config).items():
        yield f"{where}: {name}", setting.doc
        if setting.row is not None:
            yield from meanings(f"{where}: [[{name}]]", setting.row)


def command_help(command: Any, path: str) -> Iterator[tuple[str, str]]:
    # A command's docstring has paragraphs, and each begins anew.
    for text in (command.help or "").split("\n\n"):
        yield path, text
    yield f"{path}, at the end", command.epilog or ""
    for one in command.params:
        yield f"{path} {one.opts[0]}", getattr(one, "help", None) or ""
    for name, child in getattr(command, "commands", {}).items():
        yield from command_help(child, f"{path} {name}")


def argparse_help() -> Iterator[tuple[str, str]]:
    for folder in ("tools", "benchmarks", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
                    yield f"{path.relative_to(ROOT)}:{node.value.lineno}", str(node.value.value)


def first_lines() -> Iterator[tuple[Path, int, str]]:
    for folder in ("agent", "blockdev", "daemon", "kmod_shim", "scheduler", "src"):
        for path in sorted((ROOT / folder).rglob("*.py")):  # rglob does not walk into links
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if text := ast.get_docstring(node):
                    summary = text.partition("\n\n")[0]  # it may run over several lines
                    yield path.relative_to(ROOT), getattr(node, "lineno", 1), summary


def complaints(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [f"{where}: {fault}: {text}" for where, text in texts for fault in broken_rules(text) + house_words(text)]


@pytest.mark.parametrize("program", kinds())
def test_the_meaning_of_a_setting_is_plain_english(program: str) -> None:
    assert complaints(meanings(program, kinds()[program])) == []


def test_help_is_plain_english() -> None:
    assert complaints(command_help(typer.main.get_command(app), "farside")) == []
    assert complaints(argparse_help()) == []


def test_every_setting_and_option_says_what_it_means() -> None:
    texts = [found for program, config in kinds().items() for found in meanings(program, config)]

    assert [where for where, text in texts if not re.match(r"\S+ \S+", text)] == []
    assert [where for where, text in texts if text.endswith(".")] == []  # a page puts it there


def test_first_lines_of_docstrings_get_plainer() -> None:
    bad = [(path, line, text) for path, line, text in first_lines() if broken_rules(text)]

    counts = Counter(path.parts[0] for path, _, _ in bad)
    above = {folder for folder in counts if counts[folder] > KNOWN.get(folder, 0)}
    worst = "\n".join(
        f"{path}:{line}: {broken_rules(text)}: {text}" for path, line, text in bad if path.parts[0] in above
    )

    assert not above, f"more first lines that are not plain English than KNOWN allows: {dict(counts)}\n{worst}"
    assert counts == Counter(KNOWN), f"fewer than KNOWN allows: lower it to {dict(counts)}"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Of this user alone.", "begins with Of"),
        ("Show all. Of all for operators.", "begins with Of"),
        ("The same, run after each task", "begins with The same"),
        ("Memory of each node. Likewise of CPUs.", "begins with Likewise"),
        ("As `load_config`, with sources.", "begins with As `x`"),
        ("It takes options as words.", "begins with It, without its noun"),
        ("Format of the trace, else found out.", "bare else"),
        ("So many jobs; one in so many fails.", "so many"),
        ("Lend no more.", "no more"),
        ("This name is no name of a node.", "is no X"),
        ("Slabs that stand at once.", "stands, for is"),
        ("An entry stands before it.", "stands, for is"),
        ("It is 8 unless told otherwise.", "tells, for reports"),
        ("What a kernel tells us.", "tells, for reports"),
    ],
)
def test_a_habit_is_found(text: str, rule: str) -> None:
    assert rule in broken_rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "Number of GPUs. Often none.",
        "Offers memory, in the same order as before.",
        "As many as memory allows; as `farside sim run` has it.",
        "Items of a list. It has a limit.",
        "Make swap on a device that holds something else, or nothing else.",
        "Everybody else's memory, and what else the settings allow.",
        "So many jobs that the queue is full.",
        "Use no more than this.",
        "The node is no longer drained, and there is no other.",
        "E stands for evicted slabs, in a standalone program that understands it.",
        "Write with full details.",
        "Retell. A clock that stands still until ``told`` is true.",
    ],
)
def test_plain_english_is_not_taken_for_a_habit(text: str) -> None:
    assert broken_rules(text) == []
