"""Audit records of API requests: refusals, and operators' reads of other people's jobs."""

from fastapi import HTTPException, Request
from starlette.requests import HTTPConnection

from farside.errors import FarsideError
from farside.log import get_log
from farside.scheduler.manager.auth.caller import Caller, Callers
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.event import AccessRecorded
from farside.scheduler.manager.view.audit import READ, AccessGate

TARGET_MAX, RESULT_MAX = 200, 300

_log = get_log("manager.audit")


class AccessLog:
    """Writes notes into the log. A note that can't be written is an error in the process's log, and holds up nobody."""

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
        note = AccessRecorded(action=action[:60], target=target[:TARGET_MAX], result=result[:RESULT_MAX])
        written = self._gate.admitted(caller.told, note, self._log.now_s())
        # The gate passes repeats over, so that one caller can't fill the log with refusals.
        if written is None:
            return
        try:
            await self._log.write([written], caller.told)
        except FarsideError as error:
            _log.error("an audit record is lost", actor=caller.told, action=action, target=target, reason=error)
