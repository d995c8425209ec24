"""The application: routes, one clear line for each error, and what runs beside them."""

import math
from pathlib import Path

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.routing import Match

from farside.errors import ConfigError, FarsideError
from farside.scheduler.live.api.agents import AgentSessions
from farside.scheduler.live.api.answer import answer
from farside.scheduler.live.api.body_limit import BodyLimit
from farside.scheduler.live.api.brain_watch import BrainWatch
from farside.scheduler.live.api.caller import Callers, Role
from farside.scheduler.live.api.depends import Anyone
from farside.scheduler.live.api.document import describe, says, shows
from farside.scheduler.live.api.donors import donor_routes
from farside.scheduler.live.api.glance import Glance, glance_routes
from farside.scheduler.live.api.jobs import job_routes
from farside.scheduler.live.api.nodes import node_routes
from farside.scheduler.live.api.page import page_routes
from farside.scheduler.live.api.power import power_routes
from farside.scheduler.live.api.reservations import reservation_routes
from farside.scheduler.live.api.trail import Trail, audit_routes
from farside.scheduler.live.api.usage import usage_routes
from farside.scheduler.live.follow import LiveLog
from farside.scheduler.live.hourly import TooMany
from farside.scheduler.live.power.keep import NOBODY, LivePower
from farside.scheduler.live.power.setup import PowerSetup
from farside.scheduler.live.queued import QueueLimits
from farside.scheduler.tenancy import Tenancy

# What an H200 SXM may draw, by its maker; for those who do not say (`gpu_power_w`).
GPU_POWER_W = 700.0
NO_LIMITS = QueueLimits()
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Whoami(msgspec.Struct, frozen=True, kw_only=True):
    """Who the manager takes the caller for."""

    name: str
    role: Role
    proved: bool


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which entry of the log it has read, and which brain leads; 0: none yet.

    And of this manager's own brain: when a cycle failed last, null where none has, and how many have since one did not.
    """

    seq: int
    generation: int
    cycle_failed_s: float | None
    cycle_failures_in_a_row: int


def make_app(
    log: LiveLog,
    callers: Callers,
    folder: Path,
    sessions: AgentSessions,
    *,
    may_tokens_submit: bool,
    only_uid: int | None = None,
    tenancy: Tenancy | None = None,
    gpu_power_w: float = GPU_POWER_W,
    power: LivePower | None = None,
    queue_limits: QueueLimits = NO_LIMITS,
) -> FastAPI:
    """The API over one log. ``only_uid``: nobody else may submit, as all jobs run as this user; None: all but uid 0."""
    app = FastAPI(
        title="Farside manager",
        version="1",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        description='Errors are `{"detail": TEXT}`, one line that says what is wrong and what to do.',
    )
    app.add_middleware(BodyLimit, callers=callers)
    app.state.log, app.state.callers = log, callers
    app.state.trail = trail = Trail(log, callers)
    app.include_router(
        job_routes(
            log,
            folder,
            sessions.checkpoint_problem,
            tenancy,
            may_tokens_submit=may_tokens_submit,
            only_uid=only_uid,
            limits=queue_limits,
        )
    )
    app.include_router(node_routes(log))
    app.include_router(donor_routes(log, lambda: sessions.ring, sessions.sensed))
    power = power or LivePower(PowerSetup(policy=NOBODY, is_dry_run=False), log, sessions, folder)
    idle_w = power.setup.idle_w
    app.include_router(power_routes(log, power))
    app.state.brain = brain = BrainWatch(folder)
    app.state.glance = Glance(log, folder, sessions.sensed, idle_w, lambda: power.forecast)
    app.include_router(glance_routes(app.state.glance))
    app.include_router(page_routes(callers))
    app.include_router(reservation_routes(log))
    app.include_router(usage_routes(log, gpu_power_w, idle_w))
    app.include_router(audit_routes(log))
    sessions.serve(app)

    @app.get("/v1/whoami", tags=["manager"], summary="Who the manager takes the caller for", responses=says(Whoami))
    async def whoami(caller: Anyone) -> Response:
        return answer(Whoami(name=caller.name, role=caller.role, proved=caller.uid >= 0))

    @app.get(
        "/v1/health", tags=["manager"], summary="Whether it answers, up to which entry it has read, if cycles fail",
        responses={200: shows(Health)},
    )  # fmt: skip
    async def health() -> Response:
        return answer(
            Health(
                seq=log.state.seq,
                generation=log.state.generation,
                cycle_failed_s=brain.failed_s,
                cycle_failures_in_a_row=brain.failures_in_a_row,
            )
        )

    async def no(request: Request, status: int, detail: str, *, noted: str = "") -> Response:
        await trail.refused(request, status, noted or detail)
        return answer({"detail": detail}, status)

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> Response:
        return await no(request, 422, "; ".join(map(_said, error.errors())))

    @app.exception_handler(ConfigError)
    async def mistaken(request: Request, error: ConfigError) -> Response:
        return await no(request, 422, str(error))

    @app.exception_handler(TooMany)
    async def too_many(request: Request, error: TooMany) -> Response:
        # The note has no times, so it is always the same, and written down once in ten minutes.
        response = await no(request, 429, str(error), noted="more than max_hourly_jobs_per_user")
        response.headers["Retry-After"] = str(math.ceil(error.after_s))
        return response

    @app.exception_handler(FarsideError)
    async def broken(_: Request, error: FarsideError) -> Response:
        return answer({"detail": str(error)}, 503)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        response = await no(request, error.status_code, " ".join(str(error.detail).split()))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(405)
    async def no_such_method(request: Request, _: Exception) -> Response:
        allowed = ", ".join(sorted(_methods_at(app, request)))
        response = answer({"detail": f"{request.method} is nothing that can be done here; {allowed} is"}, 405)
        response.headers["Allow"] = allowed
        return response

    describe(app)
    return app


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
    """What is wrong with a part of the address or a header; bodies have words of their own (body.py)."""
    found = msgspec.convert(error, dict[str, object], strict=False)
    where = found.get("loc")
    names = [f"{one!s:.100}" for one in where[1:]] if isinstance(where, tuple | list) else []
    return f"{'.'.join(names)}: {found.get('msg')}"
