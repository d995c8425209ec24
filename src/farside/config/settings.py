"""How a setting is declared: a dataclass field whose metadata says kind, range, choices and meaning.

The frozen dataclasses of `daemon.py` and `blockdev.py` are the table. Types, defaults, the reader of TOML, `farside
config show` and docs/operating.md all come from it, so nothing is told twice.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Protocol


class Kind(StrEnum):
    """What a value is, hence how its text is read and which unit is printed beside it."""

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
    required: bool = False


_KEY = "farside.setting"


def about(
    kind: Kind,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    row: type[Declared] | None = None,
) -> Mapping[str, Mapping[str, object]]:
    """Metadata of a dataclass field that makes it a setting. ``low`` and ``high`` are allowed values themselves."""
    told = {"kind": kind, "doc": doc, "low": low, "high": high, "choices": choices, "row": row}
    return MappingProxyType({_KEY: told})


def settings_of(config: type[Declared]) -> Mapping[str, Setting]:
    """The table of a config class, in the order of its declaration."""
    found = {}
    for field in fields(config):
        told: dict[str, Any] = field.metadata[_KEY]
        required = field.default is MISSING
        found[field.name] = Setting(
            name=field.name, default=None if required else field.default, required=required, **told
        )
    return MappingProxyType(found)
