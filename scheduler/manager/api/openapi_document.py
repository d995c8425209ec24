"""The OpenAPI document: what each route takes, answers and refuses.

A route names Structs, and the document has their schemas as msgspec makes them. Objects that are answered may grow keys
in later versions, so nothing forbids others. Times are seconds since 1970, null before there is one.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI

from farside.scheduler.manager.field_limit import limits_of, schema_of

Answers = dict[int | str, dict[str, Any]]

_REF = "#/components/schemas/{name}"
_SHAPES: set[type[msgspec.Struct]] = set()
_WHY: Mapping[int, str] = {
    401: "Nobody knows who calls",
    403: "The caller may not",
    404: "The caller has, or sees, no such thing",
    409: "Not in the state that it is in",
    413: "The body is larger than this route, or this caller, may have it",
    422: "The request is wrong, or asks for what can never be",
    429: "Too much at a time or within an hour, or too many deployments; Retry-After says when to come again",
    503: "The store or the scheduler process does not answer, or too many ask; come again",
}


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused."""

    detail: Annotated[str, msgspec.Meta(description="One line: what is wrong, and what to do")]


def refusals(*statuses: int) -> Answers:
    """Error answers of a route; those of authentication are always among them."""
    # A thing that is named in the path: the framework documents a shape of its own for it, unless told.
    also = {422} if 404 in statuses else set()
    told = sorted({401, 403, 503, *statuses} | also)
    return {status: {"description": _WHY[status], "content": _json(Refusal)} for status in told}


def says(
    shape: type[msgspec.Struct], *statuses: int, links: Mapping[str, Any] | None = None, status: int = 200
) -> Answers:
    """The responses of a route: its answer, and the statuses of `refusals` by which it may refuse."""
    return {status: {**shows(shape), **({"links": links} if links else {})}, **refusals(*statuses)}


def shows(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """A good answer."""
    return {"description": "Successful Response", "content": _json(shape)}


def lists(shape: type[msgspec.Struct], *statuses: int) -> Answers:
    """The responses of a listing that clients may keep."""
    tag = {"ETag": {"description": "Names this answer, for `If-None-Match`", "schema": {"type": "string"}}}
    told = says(shape, *statuses)
    told[200]["headers"] = tag
    return {**told, 304: {"description": "The client has this answer already", "headers": tag}}


def takes(
    shape: type[msgspec.Struct], *parts: type[msgspec.Struct], example: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The body of a route that `body_of` reads. ``parts``: Structs in it that have limits of their own."""
    _SHAPES.update(parts)
    content = _json(shape)
    if example is not None:
        content["application/json"]["example"] = example
    return {"requestBody": {"required": True, "content": content}}


def _json(shape: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    _SHAPES.add(shape)
    return {"application/json": {"schema": {"$ref": _REF.format(name=shape.__name__)}}}


def describe(app: FastAPI) -> None:
    """Has an application's document show the Structs that its routes name."""
    framework = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = framework()
            document.setdefault("components", {}).setdefault("schemas", {}).update(_schemas())
            for operation in (one for path in document["paths"].values() for one in path.values()):
                # A route says in its docstring what it does, and the framework takes that for the long text.
                operation["summary"] = operation.pop("description").removesuffix(".")
        return framework()

    app.openapi = openapi  # type: ignore[method-assign] # as FastAPI's own manual does it


def _schemas() -> dict[str, Any]:
    shapes = sorted(_SHAPES, key=lambda shape: shape.__name__)
    _, found = msgspec.json.schema_components(shapes, ref_template=_REF)
    for shape in shapes:
        for key, limits in limits_of(shape).items():
            found[shape.__name__]["properties"][key] |= schema_of(limits)
    return found
