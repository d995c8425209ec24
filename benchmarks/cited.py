"""Figures that a document takes from a result file: pure, text and decoded JSON in, text out.

How it works. Two marks, which a reader of the rendered page does not see:

* ``4.09<!--apps:gain/farside-tcp/disk/etc/50-->``: the number in front of the mark is the value at that path of
  ``benchmarks/results/apps.json``. ``#2`` behind the path takes the second number of a text, ``*1000`` multiplies.
  The number keeps its form: as many decimals as before, a comma at thousands where there was one.
* ``<!--table reproduce:energy-table-5/0-->`` and ``<!--end-->``: the lines between are a whole table. In the result
  file it is ``{"header": [...], "rows": [[...]]}``.

A step of a path is a key of an object, an index of a list, or the name of an element: what its ``key`` or ``name``
says, or the first cell of a row. A key may contain a slash. A row's next step is a column of the table.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Sources = Callable[[str], Any]
_MARK = r"<!--(?P<file>[\w-]+):(?P<path>[^>#*]+?)(?:#(?P<nth>\d+))?(?:\*(?P<scale>-?[\d.]+))?-->"
_DIGITS = r"(?<![\d.])-?\d+(?:,\d{3})*(?:\.\d+)?"
_NUMBER = re.compile(rf"(?P<old>{_DIGITS}){_MARK}")
_LONE_MARK = re.compile(_MARK)
_TABLE = re.compile(
    r"(?P<begin>^<!--table (?P<file>[\w-]+):(?P<path>[^>]+?)-->\n)(?P<old>.*?)(?P<end>^<!--end-->$)",
    re.DOTALL | re.MULTILINE,
)
_IN_TEXT = re.compile(_DIGITS)


class UnknownFigureError(ValueError):
    """A mark that no result file can answer."""


def with_figures(document: str, sources: Sources) -> str:
    """The document with each marked number and table as its result file has it.

    Raises:
        UnknownFigureError: A mark has no number in front, or names what no result file has.
    """
    numbers = sum(1 for _ in _NUMBER.finditer(document))
    if numbers != sum(1 for _ in _LONE_MARK.finditer(document)):
        raise UnknownFigureError("a mark has no number directly in front of it")
    document = _TABLE.sub(lambda found: _with_table(found, sources), document)
    return _NUMBER.sub(lambda found: _with_number(found, sources), document)


def names_of(document: str) -> Iterator[str]:
    """The result files that a document names, each as often as it does."""
    for pattern in (_LONE_MARK, _TABLE):
        yield from (found["file"] for found in pattern.finditer(document))


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column left, the others as they are."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def look_up(found: Any, path: str) -> Any:
    """The value at that path of decoded JSON.

    Raises:
        UnknownFigureError: There is none.
    """
    rest = path
    while rest:
        found, rest = _step(found, rest, path)
    return found


def restyled(old: str, value: float) -> str:
    """The value in the form of the number that it replaces."""
    decimals = len(old.partition(".")[2])
    has_comma = "," in old or (abs(value) >= 1000 and len(old.partition(".")[0].lstrip("-")) < 4)
    return f"{value:,.{decimals}f}" if has_comma else f"{value:.{decimals}f}"


def _with_number(found: re.Match[str], sources: Sources) -> str:
    mark = found[0][len(found["old"]) :]
    value = look_up(sources(found["file"]), found["path"])
    if isinstance(value, str):
        numbers = _IN_TEXT.findall(value)
        nth = int(found["nth"] or 1)
        if len(numbers) < nth:
            raise UnknownFigureError(f"{mark}: {value!r} has {len(numbers)} numbers")
        value = float(numbers[nth - 1].replace(",", ""))
    if not isinstance(value, int | float):
        raise UnknownFigureError(f"{mark}: not a number, but {str(value)[:60]}")
    return restyled(found["old"], value * float(found["scale"] or 1)) + mark


def _with_table(found: re.Match[str], sources: Sources) -> str:
    table = look_up(sources(found["file"]), found["path"])
    return f"{found['begin']}{table_text(table['header'], table['rows'])}{found['end']}"


def _step(found: Any, rest: str, path: str) -> tuple[Any, str]:
    names = _names(found)
    fitting = [name for name in names if rest == name or rest.startswith(f"{name}/")]
    if not fitting:
        raise UnknownFigureError(f"{path}: no {rest!r}; there are {', '.join(names)[:400]}")
    name = max(fitting, key=len)
    return names[name], rest[len(name) + 1 :]


def _names(found: Any) -> Mapping[str, Any]:
    """What a step may be called here, and where it leads."""
    match found:
        case {"header": [_, *header], "rows": [*rows]}:
            by_row = [dict(zip(header, row[1:], strict=True)) for row in rows]
            by_name = {row[0]: cells for row, cells in zip(rows, by_row, strict=True)}
            return {str(at): cells for at, cells in enumerate(by_row)} | by_name
        case dict():
            return found
        case list():
            by_name = {str(one.get("key") or one.get("name")): one for one in found if isinstance(one, dict)}
            return {str(at): one for at, one in enumerate(found)} | by_name
        case _:
            return {}
