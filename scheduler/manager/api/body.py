"""Request bodies: JSON decoded into a Struct, or one line that lists what is wrong with it.

All that is long is looked at for its length first, and a list is given up at its first wrong item: each thing that is
wrong is some hundred bytes here, and a million of them kept everybody waiting for half a minute.
"""

import json
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from enum import EnumType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from fastapi import HTTPException, Request

from farside.scheduler.manager.field_limit import length_problem, limits_of

# Of one body; the largest has thirty.
KEYS_MAX = 64
# Of what is wrong with a body; who has fixed these finds the rest.
SAID_MAX = 10
_NAME_MAX = 100  # characters of a key that is repeated to its writer
_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "null",
}

T = TypeVar("T", bound=msgspec.Struct)


def body_of(kind: type[T], *, is_strict: bool = False) -> Callable[[Request], Coroutine[Any, Any, T]]:
    """A dependency of a route: its body. Put it behind who calls, as FastAPI asks for them in that order.

    ``is_strict``: a program writes it, so numbers are no texts, and nothing else is true or false.
    """

    async def read(request: Request) -> T:
        _, body = await read_body(request, kind, is_strict=is_strict)
        return body

    return read


async def read_body(request: Request, kind: type[T], *, is_strict: bool = False) -> tuple[Mapping[str, Any], T]:
    """A body as it was sent, and what it says.

    Raises:
        HTTPException: 422, it is not of this kind.
    """
    told = _json_of(await request.body(), request.headers.get("content-type", ""))
    lengths = {key: length_problem(limits, told.get(key)) for key, limits in limits_of(kind).items()}
    try:
        if not any(lengths.values()):
            return told, msgspec.convert(told, kind, strict=is_strict)
    except msgspec.ValidationError:
        pass  # which tells of the first thing alone
    problems = list(_problems(told, kind, lengths, is_strict=is_strict))
    more = [f"and {len(problems) - SAID_MAX:,} more"] if len(problems) > SAID_MAX else []
    raise HTTPException(422, "; ".join([*problems[:SAID_MAX], *more]))


def _json_of(body: bytes, content_type: str) -> dict[str, Any]:
    if "json" not in content_type.partition(";")[0]:
        raise HTTPException(422, "body: must be JSON, and be called so by Content-Type: application/json")
    try:
        told = json.loads(body)
    except json.JSONDecodeError as error:
        raise HTTPException(422, f"body: is not JSON from character {error.pos} on") from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, "body: is not JSON in UTF-8") from error
    if not isinstance(told, dict):
        raise HTTPException(422, "body: must be a table of keys and values")
    if len(told) > KEYS_MAX:
        raise HTTPException(422, f"body: has {len(told)} keys, and most are unknown")
    return told


def _problems(
    told: Mapping[str, Any], kind: type[msgspec.Struct], lengths: Mapping[str, str], *, is_strict: bool
) -> Iterator[str]:
    """Errors of a body, at most one line for each key."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in told.items():
        field = fields.get(key)
        if field is None:
            yield f"{key:.{_NAME_MAX}}: no such key"
        elif problem := lengths.get(key):
            yield f"{key}: {problem}"
        else:
            yield from _wrong(key, value, field.type, is_strict=is_strict)
    yield from (f"{key}: is missing" for key, field in fields.items() if field.required and key not in told)


def _wrong(key: str, value: object, kind: Any, *, is_strict: bool) -> Iterator[str]:
    try:
        msgspec.convert(value, kind, strict=is_strict)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        name = key + re.sub(r"\[(\w+)\]", r".\1", where.removesuffix("`"))
        if name.endswith("[...]") and isinstance(value, dict):  # only our own words name the key of a table
            name = f"{key}.{next(one for one, text in value.items() if not isinstance(text, str)):.{_NAME_MAX}}"
        if unknown := re.match(r"Object contains unknown field `(.*)`", what):
            yield f"{name}.{unknown[1]:.{_NAME_MAX}}: no such key"
        elif missing := re.match(r"Object missing required field `(.*)`", what):
            yield f"{name}.{missing[1]}: is missing"
        elif isinstance(bare := get_args(kind)[0] if get_origin(kind) is Annotated else kind, EnumType):
            yield f"{name}: must be {' or '.join(map(str, bare))}"
        else:
            text = re.sub("`([^`]*)`", _words, what)
            yield f"{name}: {text[0].lower()}{text[1:]}"


def _words(kind: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(one, one) for one in kind[1].split(" | "))
