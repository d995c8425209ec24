"""Meaning and limits of a Struct's field, declared at the field. PURE.

How it works
  A limit is ``extra`` of the field's `msgspec.Meta`, in the words of JSON schema: so nothing enforces it where a record
  is read. A log keeps jobs that were taken under other limits, and must be read all the same. `limit_problems` holds
  what is asked now to the limits, and the OpenAPI document shows them (api/document.py).
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Meta

MAX_LINE = 128
MAX_PATH = 4096
# Above it no number makes sense, and none is named as a limit.
UNLIMITED = 1e18
# What JSON schema has no word for: a way out of the refusal, and one for numbers below the minimum alone.
_ADVICE, _ADVICE_BELOW = "advice", "advice below"


def number(meaning: str, low: float, high: float = UNLIMITED, advice: str = "", *, below: str = "") -> Meta:
    """A number between two others, which may both be taken; ``below``: the advice for a smaller one."""
    extra = {"minimum": low, "maximum": high, _ADVICE: advice, _ADVICE_BELOW: below or advice}
    return Meta(description=meaning, extra=extra)


def line(meaning: str) -> Meta:
    """A text of one line, of at most `MAX_LINE` printable characters."""
    return Meta(description=meaning, extra={"maxLength": MAX_LINE, "format": "line"})


def path(meaning: str) -> Meta:
    """A path, of at most `MAX_PATH` bytes."""
    return Meta(description=meaning, extra={"maxLength": MAX_PATH, "format": "path"})


def items(meaning: str, most: int, advice: str, *, word: str = "maxItems") -> Meta:
    """A list, or by ``word`` maxProperties a table, that is not longer."""
    return Meta(description=meaning, extra={word: most, _ADVICE: advice})


@cache
def limits_of(kind: type[msgspec.Struct]) -> Mapping[str, Mapping[str, Any]]:
    """The limits of each key that has some, as they were declared."""
    told = msgspec.inspect.type_info(kind)
    assert isinstance(told, msgspec.inspect.StructType)
    types = {field.encode_name: field.type for field in told.fields}
    found = {key: one.extra for key, one in types.items() if isinstance(one, msgspec.inspect.Metadata)}
    return {key: limits for key, limits in found.items() if limits}


def schema_of(limits: Mapping[str, Any]) -> Mapping[str, Any]:
    """Limits as JSON schema shows them."""
    return {word: value for word, value in limits.items() if not word.startswith(_ADVICE) and value != UNLIMITED}


def length_problem(limits: Mapping[str, Any], value: object) -> str:
    """The error in the length of a list or a table; empty: none. Checked before the items."""
    most = limits.get("maxItems", limits.get("maxProperties"))
    if most is None or not isinstance(value, list | dict) or len(value) <= most:
        return ""
    return f"at most {most:,}, not {len(value):,}; {limits[_ADVICE]}"


def limit_problems(told: msgspec.Struct) -> Iterator[str]:
    """The values that are beyond the limits of their fields; each line names the key."""
    for key, limits in limits_of(type(told)).items():
        value = getattr(told, key)
        if "minimum" in limits and not limits["minimum"] <= value <= limits["maximum"]:
            said = f"{value:g}" if isinstance(value, float) else f"{value!s:.20}"
            advice = limits[_ADVICE_BELOW if value < limits["minimum"] else _ADVICE]
            yield f"{key}: must be {_range(key, limits, value)}, is {said}{advice and f'; {advice}'}"
        elif limits.get("format") == "line" and (len(value) > limits["maxLength"] or not value.isprintable()):
            yield f"{key}: must be one line of at most {limits['maxLength']} printable characters"
        elif limits.get("format") == "path" and len(value.encode(errors="replace")) > limits["maxLength"]:
            yield f"{key}: is longer than the {limits['maxLength']} bytes of a path"
        elif "pattern" in limits and not re.fullmatch(limits["pattern"], value):
            yield f"{key}: must be {limits[_ADVICE]}, is {value:.40}"


def _range(key: str, limits: Mapping[str, Any], value: float) -> str:
    low, high = limits["minimum"], limits["maximum"]
    unit = " seconds" if key.endswith("_s") else ""
    return f"{low:g} or more" if value < low and high == UNLIMITED else f"{low:g} to {high:g}{unit}"
