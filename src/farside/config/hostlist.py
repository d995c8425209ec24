"""Host lists as Slurm writes them: ``gn[1-3,7],login,r[1-2]n[01-16]``. PURE."""

import itertools
import math
import re

# A list that names more is not one of ours: Slurm's own limit is 64 K nodes.
MOST = 65_536
_PART = re.compile(r"\[([\d,-]+)\]|([^\[\],]+)")


def expand(text: str) -> tuple[str, ...]:
    """The nodes of a list in its order; empty for an empty one.

    Raises:
        ValueError: It is no such list, or names more nodes than Slurm can have.
    """
    names: list[str] = []
    for entry in _entries(text):
        names += _names(entry)
        if len(names) > MOST:
            raise ValueError(f"'{text[:60]}' names more than {MOST} nodes")
    return tuple(names)


def _entries(text: str) -> list[str]:
    """Parts between commas, but for those in brackets."""
    entries: list[str] = []
    depth, begin = 0, 0
    for at, letter in enumerate(text + ","):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            entries += [text[begin:at]] if at > begin else []
            begin = at + 1
    if depth:
        raise ValueError(f"'{text[:60]}' has a bracket that is not closed")
    return entries


def _names(entry: str) -> list[str]:
    parts: list[list[str]] = []
    end = 0
    for match in _PART.finditer(entry):
        if match.start() != end:
            break
        end = match.end()
        parts.append(_numbers(match.group(1)) if match.group(1) else [match.group(2)])
    if end != len(entry):
        raise ValueError(f"'{entry[:60]}' is not a list of nodes")
    if math.prod(map(len, parts)) > MOST:
        raise ValueError(f"'{entry[:60]}' names more than {MOST} nodes")
    return ["".join(one) for one in itertools.product(*parts)]


def _numbers(ranges: str) -> list[str]:
    found: list[str] = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        is_one = first.isdigit() and (not dash or last.isdigit())
        numbers = range(int(first), int(last or first) + 1) if is_one else range(0)
        if not 0 < len(numbers) <= MOST:
            raise ValueError(f"'[{ranges[:60]}]' is not a range of numbers")
        found += [f"{number:0{len(first)}d}" for number in numbers]
    return found
