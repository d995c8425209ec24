"""The OpenAPI document: what a route takes.

A route names a Struct, and the document has its schema as msgspec makes it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI

from farside.scheduler.live.field_limit import limits_of, schema_of

_REF = "#/components/schemas/{name}"
_SHAPES: set[type[msgspec.Struct]] = set()


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
        return framework()

    app.openapi = openapi  # type: ignore[method-assign] # as FastAPI's own manual does it


def _schemas() -> dict[str, Any]:
    shapes = sorted(_SHAPES, key=lambda shape: shape.__name__)
    _, found = msgspec.json.schema_components(shapes, ref_template=_REF)
    for shape in shapes:
        for key, limits in limits_of(shape).items():
            found[shape.__name__]["properties"][key] |= schema_of(limits)
    return found
