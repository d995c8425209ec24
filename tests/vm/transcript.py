"""Commands of a document with what they print, and whether a machine prints that. PURE.

    ```console
    d1# farside keygen                  a command, on the machine named before the #; `all` is every machine
    /etc/farside/key: made; copy it     what it prints; nothing here: whatever it prints
    ...                                 any lines, or none
    ```

    ```toml
    # /etc/farside/peers.toml on n1     a file of that machine, with what follows
    ```

Numbers and their units are not compared, but for a nought, which is one; nor is how many blanks stand between words:
two machines differ in these.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ANY = "..."
EVERYWHERE = "all"
_BLOCK = re.compile(r"^```(console|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?P<machine>[a-z]+\d*)# (?P<command>.+)")
_FILE = re.compile(r"# (?P<path>/\S+) on (?P<machine>\S+)")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*(?: ?(?:[KMGT]iB|bytes|ms|us|s|W)\b)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One to run, and the lines that it must print."""

    machine: str
    command: str
    prints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One to write."""

    machine: str
    path: str
    text: str


def steps(document: str) -> tuple[Command | File, ...]:
    """What the document has its reader do, in order.

    Raises:
        ValueError: A block begins with neither a command nor a file's name.
    """
    found: list[Command | File] = []
    for block in _BLOCK.finditer(document):
        found += _commands(block[2]) if block[1] == "console" else [_file(block[2])]
    return tuple(found)


def section(document: str, title: str) -> str:
    """From a heading to the next of its level.

    Raises:
        ValueError: There is no such heading.
    """
    level = title.partition(" ")[0]
    _, found, rest = document.partition(f"{title}\n")
    if not found:
        raise ValueError(f"no heading {title!r}")
    return re.split(rf"^{level} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def agrees(expected: Sequence[str], printed: str) -> bool:
    """Whether that is what was expected to be printed; nothing expected is content with anything."""
    wanted = [_pattern(line) for line in expected if line]
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    return not wanted or _matches(wanted, [line for line in lines if line])


def _matches(wanted: Sequence[str], lines: Sequence[str]) -> bool:
    if not wanted:
        return not lines
    if wanted[0] == ANY:
        return any(_matches(wanted[1:], lines[skipped:]) for skipped in range(len(lines) + 1))
    return bool(lines) and re.fullmatch(wanted[0], lines[0]) is not None and _matches(wanted[1:], lines[1:])


def _pattern(line: str) -> str:
    if line == ANY:
        return line
    words, parts, end = " ".join(line.split()), list[str](), 0
    for number in _NUMBER.finditer(words):
        is_nought = not re.search(r"[1-9]", number[0])
        parts += [re.escape(words[end : number.start()]), re.escape(number[0]) if is_nought else _NUMBER.pattern]
        end = number.end()
    return "".join((*parts, re.escape(words[end:])))


def _commands(block: str) -> Iterator[Command]:
    machine, command, prints = "", "", list[str]()
    for line in block.splitlines():
        begin = _COMMAND.fullmatch(line)
        if begin is None and not command:
            raise ValueError(f"a console block begins with {line!r}, which is no command: MACHINE# COMMAND")
        if begin is None:
            prints.append(line)
            continue
        if command:
            yield Command(machine=machine, command=command, prints=tuple(prints))
        machine, command, prints = begin["machine"], begin["command"], []
    if command:
        yield Command(machine=machine, command=command, prints=tuple(prints))


def _file(block: str) -> File:
    name, _, text = block.partition("\n")
    found = _FILE.fullmatch(name)
    if found is None:
        raise ValueError(f"a toml block begins with {name!r}, not with its file: # /PATH on MACHINE")
    return File(machine=found["machine"], path=found["path"], text=text)
