"""Bodies that are too large are refused before they are read, by the API's own answer.

The framework's limit answers in plain text where a length is told, and clients expect JSON.
"""

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farside.scheduler.live.api.answer import answer
from farside.units import format_bytes

# A body is read before anybody is asked who sends it. The largest that makes sense reserves a hundred thousand nodes.
BODY_BYTES_MAX = 16 << 20
TOO_LARGE = f"body: is more than {format_bytes(BODY_BYTES_MAX)}; put it into a file that the job reads"


class BodyLimit:
    """Around the application: who tells a length is answered at once, who does not is cut off at the limit."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        told = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if told.isdecimal() and int(told[:20]) > BODY_BYTES_MAX:
            await answer({"detail": TOO_LARGE}, 413)(scope, receive, send)
            return
        read_bytes = 0

        async def limited() -> Message:
            nonlocal read_bytes
            message = await receive()
            read_bytes += len(message.get("body", b"")) if message["type"] == "http.request" else 0
            if read_bytes > BODY_BYTES_MAX:
                raise HTTPException(413, TOO_LARGE)
            return message

        await self._app(scope, limited, send)
