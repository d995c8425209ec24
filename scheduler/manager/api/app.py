"""The FastAPI application: routes, one-line error answers, and the tasks that run beside them."""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.routing import Match

from farside.errors import ConfigError, FarsideError
from farside.scheduler.manager.api import (
    admissions,
    aggregation,
    audit,
    donors,
    jobs,
    nodes,
    overview,
    page,
    power,
    reservations,
    usage,
)
from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.api.deployments import routes as deployments
from farside.scheduler.manager.api.limit.body_size import BodyLimit
from farside.scheduler.manager.api.openapi_document import Refusal, describe, says, shows
from farside.scheduler.manager.api.route_arguments import Anyone, Shared, context_of
from farside.scheduler.manager.model.submit_rate import TooMany

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Whoami(msgspec.Struct, frozen=True, kw_only=True):
    """The caller as the manager knows it."""

    name: str
    role: str
    proved: bool


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which entry of the log it has read, and which scheduler process leads; 0: none yet.

    And of this manager's own scheduler process: when a cycle failed last, null where none has, and how many have since
    one did not.
    """

    seq: int
    generation: int
    cycle_failed_s: float | None
    cycle_failures_in_a_row: int


router = APIRouter(prefix="/v1", tags=["manager"])


@router.get("/whoami", responses=says(Whoami))
async def whoami(caller: Anyone) -> Response:
    """The caller as the manager knows it."""
    return answer(Whoami(name=caller.name, role=caller.role.value, proved=caller.uid >= 0))


@router.get("/health", responses={200: shows(Health)})
async def health(shared: Shared) -> Response:
    """Whether it answers, up to which entry it has read, if cycles fail."""
    return answer(
        Health(
            seq=shared.log.state.seq,
            generation=shared.log.state.generation,
            cycle_failed_s=shared.scheduler.failed_s,
            cycle_failures_in_a_row=shared.scheduler.failures_in_a_row,
        )
    )


def make_app(context: Context) -> FastAPI:
    """The API over one log."""
    app = FastAPI(
        title="Farside manager",
        version="1",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        description='Errors are `{"detail": TEXT}`, one line that says what is wrong and what to do.',
    )
    app.state.context = context
    app.add_middleware(BodyLimit, callers=context.callers)
    parts = (
        jobs, nodes, admissions, donors, aggregation, deployments, power, overview, page, reservations, usage, audit,
    )  # fmt: skip
    for part in parts:
        app.include_router(part.router)
    app.include_router(router)
    context.sessions.serve(app)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    describe(app)
    return app


async def _no(request: Request, status: int, detail: str, *, noted: str = "") -> Response:
    """Refuses in one line, which the audit has as well."""
    await context_of(request).access_log.refused(request, status, noted or detail)
    return answer(Refusal(detail=detail), status)


async def _wrong(request: Request, error: Any) -> Response:
    return await _no(request, 422, "; ".join(map(_said, error.errors())))


async def _mistaken(request: Request, error: Any) -> Response:
    return await _no(request, 422, str(error))


async def _too_many(request: Request, error: Any) -> Response:
    await context_of(request).writes.before_refusal()
    # The note has no times, so it is always the same, and written down once in ten minutes.
    response = await _no(request, 429, str(error), noted=error.noted)
    response.headers["Retry-After"] = str(math.ceil(error.after_s))
    return response


async def _broken(_: Request, error: Any) -> Response:
    return answer(Refusal(detail=str(error)), 503)


async def _refused(request: Request, error: Any) -> Response:
    response = await _no(request, error.status_code, " ".join(str(error.detail).split()))
    response.headers.update(error.headers or {})
    return response


async def _no_such_method(request: Request, _: Any) -> Response:
    allowed = ", ".join(sorted(_methods_at(request.app, request)))
    detail = f"{request.method} is not allowed here; {allowed} is"
    response = answer(Refusal(detail=detail), 405)
    response.headers["Allow"] = allowed
    return response


_HANDLERS: Mapping[int | type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
    RequestValidationError: _wrong,
    ConfigError: _mistaken,
    TooMany: _too_many,
    FarsideError: _broken,
    HTTPException: _refused,
    405: _no_such_method,
}


def _methods_at(app: FastAPI, request: Request) -> set[str]:
    """All methods of a path: the framework names those of the first route that has the path."""
    scopes = {method: {**request.scope, "method": method} for method in METHODS}
    return {
        method for method, scope in scopes.items() if any(one.matches(scope)[0] is Match.FULL for one in app.routes)
    }


def _operation_id(route: APIRoute) -> str:
    """``jobs_cancel``: what clients that are made of the OpenAPI document call it."""
    part = route.path.strip("/").split("/")[1:2]
    return "_".join(dict.fromkeys((*part, route.name)))


def _said(error: object) -> str:
    """The error in a part of the address or in a header; body.py has those of bodies."""
    found = msgspec.convert(error, dict[str, object], strict=False)
    where = found.get("loc")
    names = [f"{one!s:.100}" for one in where[1:]] if isinstance(where, tuple | list) else []
    return f"{'.'.join(names)}: {found.get('msg')}"
