"""Declaration of a setting: one line of a frozen dataclass, by the function of its kind.

    deadline_s: float = seconds(1.0, 0.01, 60, "A donor that answers later than this is suspect")

The dataclasses of daemon.py, blockdev.py, agent.py, manager.py and slurm.py are the only table. The reader of TOML,
`farside config show`, the man page farside.toml(5) and docs/operating.md (`make settings-table`) are all made from it.
A setting that has no default is a `field(metadata=about(...))`, so that type checkers ask for it.

``was`` is the name that a setting had before: renamed.py accepts it and says so.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from inspect import get_annotations
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol


class Kind(StrEnum):
    """What a value is. The kind decides how its text is read and which unit is printed beside it."""

    TEXT = "text"
    PATH = "path"
    ENDPOINTS = "endpoints"  # a list of tcp:HOST:PORT and unix:PATH
    ADDRESS = "address"  # HOST:PORT, or empty
    CHOICE = "choice"
    FLAG = "true or false"
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    MICROSECONDS = "microseconds"
    FRACTION = "fraction"
    PERCENT = "percent"
    RATE = "pages/s/GiB"
    WATTS = "W"
    RULES = "tables"  # a list of TOML tables with fields of their own


class Declared(Protocol):
    """A dataclass whose fields are settings."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table."""

    name: str
    kind: Kind
    default: object
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    row: type[Declared] | None = None  # for Kind.RULES: what one table is
    was: str = ""  # the name that it had before, which is still accepted
    required: bool = False


_KEY = "farside.setting"


def about(
    kind: Kind,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: str = "",
    row: type[Declared] | None = None,
    was: str = "",
) -> Mapping[str, Mapping[str, object]]:
    """Metadata that makes a dataclass field a setting. ``low`` and ``high`` are allowed values themselves."""
    told = {"kind": kind, "doc": doc, "low": low, "high": high, "choices": tuple(choices.split()), "row": row}
    return MappingProxyType({_KEY: {**told, "was": was}})


# --- one function for each kind. Each says that it returns a value, as dataclasses.field() does: to type checkers a
# setting is a field with a default.


def text(default: str, doc: str, *, was: str = "") -> str:
    """One line of printable text."""
    return field(default=default, metadata=about(Kind.TEXT, doc, was=was))


def path(default: str, doc: str, *, was: str = "") -> Path:
    """A path from the root; an empty one is `Path()`."""
    return field(default=Path(default), metadata=about(Kind.PATH, doc, was=was))


def endpoints(default: tuple[str, ...], doc: str, *, was: str = "") -> tuple[str, ...]:
    """Addresses to listen on: tcp:HOST:PORT, unix:PATH."""
    return field(default=default, metadata=about(Kind.ENDPOINTS, doc, was=was))


def address(default: str, doc: str, *, was: str = "") -> str:
    """HOST:PORT, or empty."""
    return field(default=default, metadata=about(Kind.ADDRESS, doc, was=was))


def choice(default: str, choices: str, doc: str, *, was: str = "") -> str:
    """One of the words in ``choices``."""
    return field(default=default, metadata=about(Kind.CHOICE, doc, choices=choices, was=was))


def flag(default: bool, doc: str, *, was: str = "") -> bool:
    """True or false."""
    return field(default=default, metadata=about(Kind.FLAG, doc, was=was))


def count(default: int, low: float, high: float, doc: str, *, was: str = "") -> int:
    """A whole number from ``low`` to ``high``."""
    return field(default=default, metadata=about(Kind.COUNT, doc, low=low, high=high, was=was))


def size(default: int, low: float, high: float, doc: str, *, was: str = "") -> int:
    """Bytes; in a file also "64MiB"."""
    return field(default=default, metadata=about(Kind.BYTES, doc, low=low, high=high, was=was))


def seconds(default: float, low: float, high: float, doc: str, *, was: str = "") -> float:
    """Seconds; in a file also "500ms"."""
    return field(default=default, metadata=about(Kind.SECONDS, doc, low=low, high=high, was=was))


def microseconds(default: int, low: float, high: float, doc: str, *, was: str = "") -> int:
    """Microseconds; in a file also "1ms"."""
    return field(default=default, metadata=about(Kind.MICROSECONDS, doc, low=low, high=high, was=was))


def fraction(default: float, low: float, high: float, doc: str, *, was: str = "") -> float:
    """A share of 1; in a file also "20%"."""
    return field(default=default, metadata=about(Kind.FRACTION, doc, low=low, high=high, was=was))


def percent(default: float, low: float, high: float, doc: str, *, was: str = "") -> float:
    """A share of 100; in a file also "20%"."""
    return field(default=default, metadata=about(Kind.PERCENT, doc, low=low, high=high, was=was))


def rate(default: float, low: float, high: float, doc: str, *, was: str = "") -> float:
    """Pages a second for each GiB."""
    return field(default=default, metadata=about(Kind.RATE, doc, low=low, high=high, was=was))


def watts(default: float, low: float, high: float, doc: str, *, was: str = "") -> float:
    """Watts."""
    return field(default=default, metadata=about(Kind.WATTS, doc, low=low, high=high, was=was))


def tables(row: type[Declared], doc: str, *, was: str = "") -> tuple[Any, ...]:
    """[[NAME]] tables, each of which becomes a ``row``; none by default."""
    return field(default=(), metadata=about(Kind.RULES, doc, row=row, was=was))


def settings_of(config: type[Declared]) -> Mapping[str, Setting]:
    """The table of a config class: its own settings in the order of their declaration, then the shared ones."""
    found = {}
    own_first = sorted(fields(config), key=lambda one: _depth(config, one.name))
    for one in own_first:
        required = one.default is MISSING
        default = None if required else one.default
        found[one.name] = Setting(name=one.name, default=default, required=required, **one.metadata[_KEY])
    return MappingProxyType(found)


def _depth(config: type, name: str) -> int:
    """The distance from a config class to the base that declares this setting."""
    return next(depth for depth, cls in enumerate(config.__mro__) if name in get_annotations(cls))
