"""What the API notes for the audit: refusals, and what operators look at of other people's jobs; and its listing."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from msgspec import Struct
from starlette.requests import HTTPConnection

from farside.errors import FarsideError
from farside.log import get_log
from farside.scheduler.live.api.answer import answer
from farside.scheduler.live.api.caller import Caller, Callers
from farside.scheduler.live.api.depends import Operator
from farside.scheduler.live.api.document import says
from farside.scheduler.live.audit import READ, AccessGate, AuditLine, show_audit
from farside.scheduler.live.event import AccessNoted
from farside.scheduler.live.follow import LiveLog

TARGET_MAX, RESULT_MAX = 200, 300

_log = get_log("manager.audit")


class Trail:
    """Writes notes into the log. What can't be written is told in the process's own log, and holds up nobody."""

    def __init__(self, log: LiveLog, callers: Callers) -> None:
        self._log = log
        self._callers = callers
        self._gate = AccessGate()

    async def refused(self, request: Request, status: int, detail: str) -> None:
        """Somebody known was refused something that changes something, or is not theirs to see.

        Who is not known is nobody's name: such requests are only counted by whoever stands before the manager.
        """
        if request.method == "GET" and status != 403:
            return
        try:
            caller = self._callers.of(request)
        except HTTPException:
            return
        await self._note(caller, request, f"{status}: {detail}")

    async def looked(self, caller: Caller, connection: HTTPConnection, target: str) -> None:
        """An operator looks at what is not theirs."""
        await self._note(caller, connection, READ, target)

    async def _note(self, caller: Caller, connection: HTTPConnection, result: str, target: str = "") -> None:
        action = getattr(connection.scope.get("endpoint"), "__name__", connection.url.path)
        target = target or " ".join(map(str, connection.path_params.values()))
        note = AccessNoted(action=action[:60], target=target[:TARGET_MAX], result=result[:RESULT_MAX])
        written = self._gate.admitted(caller.told, note, self._log.now_s())
        if written is None:
            return
        try:
            await self._log.write([written], caller.told)
        except FarsideError as error:
            _log.error("a note for the audit is lost", actor=caller.told, action=action, target=target, reason=error)


class AuditPage(Struct, frozen=True, kw_only=True):
    """Lines of the audit, the newest first. ``before``: where older ones begin; null: there are none."""

    entries: list[AuditLine]
    before: int | None


def audit_routes(log: LiveLog) -> APIRouter:
    """The route about the audit, for operators."""
    router = APIRouter(prefix="/v1/audit", tags=["manager"])

    @router.get("", summary="Who did what, the newest first", responses=says(AuditPage, 422))
    async def audit(
        _: Operator,
        actor: Annotated[str, Query(max_length=200, description="Of this user or token name alone")] = "",
        before: Annotated[int | None, Query(ge=1, le=2**62, description="Only entries before this one")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        entries = await asyncio.to_thread(log.store.told_by_people, actor=actor, before=before, limit=limit)
        last = entries[-1].seq if len(entries) == limit else None
        return answer(AuditPage(entries=[show_audit(entry, log.state) for entry in entries], before=last))

    return router
