"""Routes of /v1/overview: the cluster's overview, as one answer or as server-sent events."""

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.openapi_document import refusals, says
from farside.scheduler.manager.api.route_arguments import Person, Shared
from farside.scheduler.manager.view.overview import Glimpse

router = APIRouter(prefix="/v1/overview", tags=["manager"])


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"
    leave: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Leaves its place when it is over, also if its reader has gone before it began."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.leave()


@router.get("", responses=says(Glimpse))
async def overview(request: Request, caller: Person, shared: Shared) -> Response:
    """The cluster at a glance: nodes, what runs, what waits and why."""
    if caller.is_operator:
        await shared.access_log.looked(caller, request, "jobs of all")
    return answer(shared.overviews.show(await shared.overviews.of(caller), caller))


@router.get("/stream", response_class=EventStream, responses=refusals())
async def stream(request: Request, caller: Person, shared: Shared) -> Response:
    """The cluster at a glance, and each change of it, as server-sent events."""
    if caller.is_operator:
        await shared.access_log.looked(caller, request, "jobs of all")

    def is_valid() -> bool:
        try:
            return shared.callers.of(request) == caller
        except HTTPException:  # the token was taken out of the file, or the session is over
            return False

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    refusal = shared.overviews.enter(caller)
    if refusal:
        raise HTTPException(503, refusal, headers={"Retry-After": "10"})
    stream = EventStream(shared.overviews.follow(caller, is_valid), headers=headers)
    stream.leave = partial(shared.overviews.leave, caller)
    return stream
