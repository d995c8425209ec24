"""Conversion of text with units, such as ``64MiB``, ``5s`` and ``20%``, to numbers, and back for printing.

Inside Farside everything is bytes and seconds; only the configuration, the command line and the tables call this.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from types import MappingProxyType

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

# Binary prefixes only mean 1024; decimal ones only 1000. A bare letter (64M) is binary, as in /proc, systemd and fio.
BYTE_UNITS: Mapping[str, int] = MappingProxyType(
    {
        "": 1, "b": 1,
        "k": KIB, "kib": KIB, "kb": 1000,
        "m": MIB, "mib": MIB, "mb": 1000**2,
        "g": GIB, "gib": GIB, "gb": 1000**3,
        "t": TIB, "tib": TIB, "tb": 1000**4,
    }
)  # fmt: skip
SECOND_UNITS: Mapping[str, float] = MappingProxyType(
    {
        "": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0,
        "d": 86400.0,
    }
)  # fmt: skip

# What durations are written in for people, each until the next is reached.
_DURATIONS = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0))

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-zµ%]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes that a text such as ``64MiB``, ``1.5G`` or ``4096`` names.

    Raises:
        ValueError: It is no number, has an unknown unit, is negative, or is no whole number of bytes.
    """
    number, unit = _split(text)
    if unit not in BYTE_UNITS:
        raise ValueError(f"'{text}' has no known unit of bytes (KiB, MiB, GiB, TiB)")
    value = number * BYTE_UNITS[unit]
    if not 0 <= value < math.inf or value != int(value):
        raise ValueError(f"'{text}' is not a whole number of bytes")
    return int(value)


def parse_bound(text: str) -> int | None:
    """Bytes of a bound: ``off`` is 0, ``on`` None, no bound; otherwise a size, such as ``64GiB``.

    Raises:
        ValueError: It is none of these.
    """
    if text in ("on", "off"):
        return None if text == "on" else 0
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"{error}; write on, off or a size such as 64GiB") from None


def parse_seconds(text: str) -> float:
    """Seconds that a text such as ``5s``, ``500ms``, ``2min`` or ``0.5`` names.

    Raises:
        ValueError: It is no number or has an unknown unit.
    """
    number, unit = _split(text)
    unit = unit.replace("µ", "u")
    if unit not in SECOND_UNITS:
        raise ValueError(f"'{text}' has no known unit of time (us, ms, s, min, h, d)")
    return number * SECOND_UNITS[unit]


def parse_fraction(text: str) -> float:
    """The number that ``20%`` or ``0.2`` names, as a fraction of one.

    Raises:
        ValueError: It is no number, or has another unit.
    """
    number, unit = _split(text)
    if unit not in ("", "%"):
        raise ValueError(f"'{text}' is neither a percentage nor a number")
    return number / 100 if unit == "%" else number


def _split(text: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}' is not a number with a unit")
    return float(found.group(1)), found.group(2).lower()


def format_bytes(count: float) -> str:
    """Bytes for people, with a binary unit and at most three digits after the point: ``1.5 GiB``."""
    sign, count = ("-", -count) if count < 0 else ("", count)
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{sign}{_short(count / size)} {unit}"
    return f"{sign}{_short(count)} B"


def format_count(count: int, what: str) -> str:
    """A number with its noun: ``1 row``, ``1,200 rows``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def format_off(factor: float) -> str:
    """How far estimates were off at most, by a factor from 1: ``off by a factor of at most 1.8``, ``right to 3 %``."""
    if factor < 1.1:
        return f"right to {max(1, math.ceil(100 * (factor - 1) - 1e-6))} %"
    return f"off by a factor of at most {factor:.2g}"


def format_seconds(seconds: float) -> str:
    """A duration for people: ``0 s``, ``250 us``, ``12.5 ms``, ``3.2 s``, ``4 min``, ``2.5 h``.

    One duration has one text: what would round to 60 min is written as 1 h.
    """
    if not seconds:
        return "0 s"
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    for (unit, size), (_, larger) in pairwise(_DURATIONS):
        number = _short(seconds / size)
        if float(number) * size < larger:
            return f"{sign}{number} {unit}"
        seconds = max(seconds, larger)
    return f"{sign}{_short(seconds / 3600)} h"


# A time line that begins later than this counts seconds since 1970, and so has hours of day and days of week: nobody's
# trace begins before 1973, and none of those without a calendar lasts three years before its first job.
CALENDAR_FROM_S, CALENDAR_UNTIL_S = 1e8, 253402300800.0  # the year 10000

# No cluster lives longer: where times lie further apart a clock was wrong. 20 years, as rows by ten minutes a million.
LONGEST_SPAN_S = 20 * 365 * 86400.0


def format_moment(at_s: float) -> str:
    """A point in time for people: ``2017-10-03 14:05:09`` of seconds since 1970, ``7300 s`` on any other time line."""
    if not CALENDAR_FROM_S <= at_s < CALENDAR_UNTIL_S:
        return f"{at_s:.0f} s"
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%d %H:%M:%S")


def _short(value: float) -> str:
    """Three significant digits, more only where the whole part has more, no trailing zeros."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
