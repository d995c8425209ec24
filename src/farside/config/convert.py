"""Conversion of a TOML value to a Python value: units, type and range. Messages name neither file nor key."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from farside.config.renamed import Names
from farside.config.settings import Kind, Setting, settings_of
from farside.endpoint import parse_address, parse_endpoint
from farside.units import format_bytes, format_seconds, parse_bytes, parse_fraction, parse_seconds

_Number = Callable[[str], float]


def convert(setting: Setting, value: object) -> object:
    """The value of a setting as its dataclass wants it.

    Raises:
        ValueError: Wrong type, unit, choice or range; the text says what is allowed.
    """
    return _READERS[setting.kind](setting, value)


def nearest(name: str, names: Iterable[str]) -> str:
    """The known name that a wrong one was probably meant to be, or an empty string."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return close[0] if close else ""


def unknown(name: str, names: Iterable[str]) -> str:
    """What to say about a name that is not known."""
    meant = nearest(name, names)
    return f"no such setting; did you mean '{meant}'?" if meant else "no such setting; see `farside config show`"


def _text(setting: Setting, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text in quotes, is {_shown(value)}")
    if any(not character.isprintable() for character in value):
        raise ValueError("must be one line of printable text")
    return value


def _path(setting: Setting, value: object) -> Path:
    text = _text(setting, value)
    if text and not text.startswith("/"):
        raise ValueError(f"must be a path from the root, is '{text}'")
    return Path(text)


def _endpoints(setting: Setting, value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(_endpoint(_text(setting, one)) for one in values)


def _endpoint(text: str) -> str:
    where = parse_endpoint(text)
    if isinstance(where, str) and not where.startswith("/"):
        raise ValueError(f"'{text}' must be a path from the root")
    return text


def _address(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if text:
        parse_address(text)
    return text


def _choice(setting: Setting, value: object) -> str:
    if value not in setting.choices:
        raise ValueError(f"must be one of {', '.join(map(repr, setting.choices))}, is {_shown(value)}")
    return str(value)


def _flag(setting: Setting, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, is {_shown(value)}")
    return value


def _whole(read: _Number, setting: Setting, value: object) -> int:
    number = _number(read, setting, value)
    if number != int(number):
        raise ValueError(f"must be a whole number of {setting.kind}, is {_shown(value)}")
    return int(number)


def _real(read: _Number, setting: Setting, value: object) -> float:
    return float(_number(read, setting, value))


def _number(read: _Number, setting: Setting, value: object) -> float:
    number = read(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"must be a number of {setting.kind}, is {_shown(value)}")
    assert setting.low is not None
    assert setting.high is not None
    if not setting.low <= number <= setting.high:  # so that a NaN, which compares as false with everything, is refused
        raise ValueError(f"must be {allowed(setting)}, is {_shown(value)}")
    return number


def _percent(text: str) -> float:
    return parse_fraction(text) * 100 if text.rstrip().endswith("%") else parse_fraction(text)


def _microseconds(text: str) -> float:
    # A bare number in quotes is in the setting's own unit, as it is without quotes.
    return float(text) if text.strip().isdigit() else round(parse_seconds(text) * 1e6, 6)


def _rules(setting: Setting, value: object) -> tuple[object, ...]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError(f"must be [[{setting.name}]] tables, is {_shown(value)}")
    return tuple(_rule(setting, number, row) for number, row in enumerate(value, 1))


def _rule(setting: Setting, number: int, row: Mapping[str, object]) -> object:
    assert setting.row is not None
    known = settings_of(setting.row)
    told: dict[str, Any] = {}
    names = Names(known)
    for word, value in row.items():
        try:
            name = names.current(word, setting.name)
            if name not in known:
                raise ValueError(unknown(name, known))
            told[name] = convert(known[name], value)
        except ValueError as error:
            raise ValueError(f"table {number}: '{word}': {error}") from error
    missing = [name for name, one in known.items() if one.required and name not in told]
    if missing:
        raise ValueError(f"table {number}: needs '{missing[0]}'")
    return setting.row(**told)


_READERS: Mapping[Kind, Callable[[Setting, object], object]] = MappingProxyType(
    {
        Kind.TEXT: _text,
        Kind.PATH: _path,
        Kind.ENDPOINTS: _endpoints,
        Kind.ADDRESS: _address,
        Kind.CHOICE: _choice,
        Kind.FLAG: _flag,
        Kind.COUNT: partial(_whole, float),
        Kind.BYTES: partial(_whole, parse_bytes),
        Kind.SECONDS: partial(_real, parse_seconds),
        Kind.MICROSECONDS: partial(_whole, _microseconds),
        Kind.FRACTION: partial(_real, parse_fraction),
        Kind.PERCENT: partial(_real, _percent),
        Kind.RATE: partial(_real, float),
        Kind.WATTS: partial(_real, float),
        Kind.RULES: _rules,
    }
)


def allowed(setting: Setting) -> str:
    """The range of a setting in words, empty when it has none."""
    if setting.choices:
        return " | ".join(setting.choices)
    return "" if setting.low is None else f"{shown(setting, setting.low)} to {shown(setting, setting.high)}"


def shown(setting: Setting, value: object) -> str:
    """A value for people, with its unit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return _PRINTERS.get(setting.kind, "{:g}".format)(value)
    if isinstance(value, tuple):
        return ", ".join(str(one) for one in value)
    if isinstance(value, Path):
        return "" if value == Path() else str(value)
    return "" if value is None else str(value)


_PRINTERS: Mapping[Kind, Callable[[float], str]] = MappingProxyType(
    {
        Kind.BYTES: format_bytes,
        Kind.SECONDS: format_seconds,
        Kind.MICROSECONDS: "{:g} us".format,
        Kind.PERCENT: "{:g} %".format,
        Kind.COUNT: "{:.0f}".format,
        Kind.WATTS: "{:g} W".format,
    }
)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
