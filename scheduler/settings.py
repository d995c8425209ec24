"""Settings of policies: fields of a frozen dataclass, set from text by name. PURE.

``--set limits_gpu_s=1h,2h`` sets the field ``limits_gpu_s``. What a field accepts follows from its type and the unit
that its name ends in: ``_s`` takes ``90``, ``1.5h`` or ``inf``; ``_bytes`` takes ``64MiB``, and ``_bytes_s`` and
``_bytes_per_s`` take that or ``64MiB/s``; ``_per_day`` takes no percentage; a tuple takes values with commas between
them. Numbers are never negative and never NaN. What else a class demands of its fields it checks in
``__post_init__``, with a ValueError that names the field; one whose metadata has ``least`` takes nothing below that.
A field of any other type cannot be set from text.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from farside.errors import ConfigError
from farside.units import parse_bytes, parse_fraction, parse_seconds

T = TypeVar("T")
_Reader = Callable[[str], object]


def from_settings(cls: type[T], settings: Mapping[str, str], *, of: str = "") -> T:
    """An instance of a dataclass with some fields set from text, the others at their defaults.

    Args:
        cls: The dataclass.
        settings: Text by the name of a field.
        of: What the user calls the thing, for messages; the class's name if empty.

    Raises:
        ConfigError: An unknown name (with the nearest right one), or a value that the field does not take.
    """
    of = of or cls.__name__.lower()
    readers = _readers(cls)
    values: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in readers:
            raise ConfigError(f"{of}: no setting '{name}'", hint=suggestion(name, readers, "settings"))
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise ConfigError(f"{of}: {name}: {error}") from error
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{of}: {error}") from error


def named_settings(of: str, text: str) -> Mapping[str, str]:
    """Values by name of ``NAME=VALUE; NAME=VALUE``.

    Raises:
        ConfigError: A part has no equals sign.
    """
    told: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{of}: '{part}' is not NAME=VALUE")
        told[name.strip()] = value.strip()
    return told


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Errors within begin with the setting that they are about; one that begins with its owner's name stays.

    ``setting``: such as ``policy``, or ``policy_settings``, whose owner is ``policy``.
    """
    try:
        yield
    except ConfigError as error:
        text, owner = str(error.args[0]), setting.removesuffix("_settings")
        if text.startswith((f"{setting}:", f"{owner}:")):
            raise
        raise ConfigError(f"{setting}: {text}", hint=error.hint) from error


def settings_of(cls: type) -> tuple[str, ...]:
    """The names that `from_settings` knows for a dataclass, in the order of its fields."""
    return tuple(_readers(cls))


def chosen(name: str, known: Mapping[str, T], what: str) -> T:
    """The entry of a catalogue that a user named.

    Raises:
        ConfigError: There is none; with the nearest name, or all of them.
    """
    if name not in known:
        raise ConfigError(f"no {what} '{name}'", hint=suggestion(name, known, "those there are"))
    return known[name]


def suggestion(name: str, names: Iterable[str], what: str) -> str:
    """The most similar known name; if none is similar, all known names."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"{what}: {', '.join(known)}" if known else "it has none"


def _readers(cls: type) -> dict[str, _Reader]:
    hints = get_type_hints(cls)
    found = (
        (one.name, _reader(one.name, hints[one.name], one.metadata.get("least", 0.0)))
        for one in fields(cls)
        if one.init
    )
    return {name: reader for name, reader in found if reader is not None}


def _reader(name: str, hint: object, least: float) -> _Reader | None:
    if get_origin(hint) is Literal:
        return _choice(get_args(hint))
    if get_origin(hint) is tuple and get_args(hint) == (float, ...):
        return _several(_real(name, least))
    if hint is float:
        return _real(name, least)
    return {bool: _flag, int: _whole, str: _text}.get(hint)  # type: ignore[call-overload, no-any-return]


def _real(name: str, least: float) -> Callable[[str], float]:
    parse = next((parse for suffix, parse in _BY_UNIT if name.endswith(suffix)), parse_fraction)

    def read(text: str) -> float:
        value = math.inf if text.strip().lower() in _INFINITE else parse(text)
        if value < least:
            raise ValueError(f"must be at least {least:g}, is '{text}'")
        return value

    return read


def _bytes_per_s(text: str) -> float:
    return parse_bytes(text.strip().removesuffix("/s"))


def _rate(text: str) -> float:
    if "%" in text:
        raise ValueError(f"is how often, and '{text}' a share")
    return parse_fraction(text)


# The first suffix that fits.
_BY_UNIT: tuple[tuple[str, Callable[[str], float]], ...] = (
    ("_bytes_per_s", _bytes_per_s),
    ("_bytes_s", _bytes_per_s),
    ("_bytes", parse_bytes),
    ("_per_day", _rate),
    ("_s", parse_seconds),
)
_MOST_DIGITS = 15  # more are no whole number any more once they meet a float
_INFINITE = ("inf", "infinite", "infinity", "never")
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _flag(text: str) -> bool:
    try:
        return _FLAGS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"must be true or false, is '{text}'") from None


def _whole(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise ValueError(f"must be a whole number of at least 0, is '{text}'")
    if len(text.strip().lstrip("0")) > _MOST_DIGITS:
        raise ValueError(f"must be below 10^{_MOST_DIGITS}")
    return int(text)


def _text(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def _choice(choices: tuple[object, ...]) -> _Reader:
    def read(text: str) -> object:
        if text not in choices:
            raise ValueError(f"must be {' or '.join(map(str, choices))}, is '{text}'")
        return text

    return read


def _several(read_one: Callable[[str], float]) -> _Reader:
    def read(text: str) -> tuple[float, ...]:
        return tuple(read_one(one) for one in text.split(",")) if text.strip() else ()

    return read
