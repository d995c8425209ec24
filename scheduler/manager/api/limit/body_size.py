"""Limit on request bodies: one that is too large is refused before it is read.

How it works
  Each route takes as much as its largest request that makes sense, and nobody in particular `NOBODY_BYTES`: beyond that
  the headers have to say who calls. A body is JSON that is taken apart in one go while everybody else waits, so what
  lies beyond `COMMON_BYTES` is for routes that need it, and of one caller a few at a time.

  A credential of munge is for the body too. Such a body is read, but not looked into, until the credential was opened.

  The framework's limit answers in plain text where a length is told, and clients expect JSON.
"""

from collections import Counter
from collections.abc import Mapping

from fastapi import HTTPException, Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.auth.caller import Caller, Callers
from farside.units import format_bytes

NOBODY_BYTES = 4 << 10
COMMON_BYTES = 64 << 10
LIMITS_BYTES: Mapping[str, int] = {
    "/ui/session": NOBODY_BYTES,  # a token
    # 256 KiB of arguments, as much of environment, thrice that where each letter is written as \uXXXX; and ids.
    "/v1/jobs": 2 << 20,
    "/v1/reservations": 8 << 20,  # a hundred thousand names of nodes
}
OPERATORS_ROUTES = frozenset({"/v1/reservations"})
# Bodies beyond `COMMON_BYTES` that one caller may be sending.
LARGE_MAX = 8


def too_large(limit_bytes: int) -> str:
    """The error text for a larger body."""
    return f"body: is more than {format_bytes(limit_bytes)}; put what is long into a file that the job reads"


class BodyLimit:
    """The limit around the application: by the length that a body declares, or while it arrives."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers
        self._large: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(self._callers, self._large, scope, receive)
        headers = Headers(scope=scope)
        told = headers.get("content-length", "")
        # Twenty digits are beyond any limit; int of a header of 64 KiB of digits would raise ValueError.
        told_bytes = int(told[:20]) if told.isdecimal() else 0
        try:
            # Refused by the declared length before a byte of the body is read.
            body.admit(told_bytes)
            if told_bytes > NOBODY_BYTES or "transfer-encoding" in headers:
                await body.unseal()
            await self._app(scope, body.receive, send)
        except HTTPException as error:  # of ours: the application answers its own
            refusal = answer({"detail": error.detail}, error.status_code)
            refusal.headers.update(error.headers or {})
            await refusal(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            body.close()


class _Body:
    """The body of one request, as far as it was admitted."""

    def __init__(self, callers: Callers, large: Counter[str], scope: Scope, receive: Receive) -> None:
        self._callers, self._large = callers, large
        self._connection = HTTPConnection(scope)
        self._receive = receive
        self._admitted_bytes = NOBODY_BYTES
        self._read_bytes = 0
        self._counted = ""  # among the large ones, as whose
        self._whole: bytes | None = None  # what was read already

    async def receive(self) -> Message:
        """The next message for the application."""
        if self._whole is not None:
            whole, self._whole = self._whole, None
            return {"type": "http.request", "body": whole, "more_body": False}
        message = await self._receive()
        self._read_bytes += len(message.get("body", b"")) if message["type"] == "http.request" else 0
        self.admit(self._read_bytes)
        return message

    async def unseal(self) -> None:
        """Reads all of a body that munge has to say who sends it, and asks munge."""
        if not self._callers.is_sealed(self._connection):
            return
        request = Request(self._connection.scope, self.receive)
        await self._callers.meet(request)
        # The mark that a credential is made for covers the whole body, so all of it is read before the caller is known;
        # `_count` bounds how many large ones are read so.
        self._whole = await request.body()
        self._admitted_bytes = NOBODY_BYTES
        self.admit(len(self._whole))

    def admit(self, size_bytes: int) -> None:
        """Lets so much of it in.

        Raises:
            HTTPException: 413, it is too large; 401 or 403, nobody knows who sends it; 503, too many are on their way.
        """
        if size_bytes <= self._admitted_bytes:
            return
        path = self._connection.scope["path"]
        limit_bytes = LIMITS_BYTES.get(path, COMMON_BYTES)
        if size_bytes > limit_bytes:
            raise HTTPException(413, too_large(limit_bytes))
        # Beyond what anybody may send the caller has to be known: `of` raises 401 otherwise.
        caller = None if self._callers.is_sealed(self._connection) else self._callers.of(self._connection)
        if path in OPERATORS_ROUTES and caller is not None and not caller.is_operator:
            limit_bytes = COMMON_BYTES
            if size_bytes > limit_bytes:
                raise HTTPException(413, too_large(limit_bytes))
        if size_bytes > COMMON_BYTES:
            self._count(caller)
        self._admitted_bytes = limit_bytes if self._counted else min(limit_bytes, COMMON_BYTES)

    def _count(self, caller: Caller | None) -> None:
        if self._counted:
            return
        client = self._connection.client
        who = caller.told if caller is not None else (client.host if client is not None else "munge")
        if self._large[who] >= LARGE_MAX:
            text = f"{LARGE_MAX} large requests of yours are on their way; come again"
            raise HTTPException(503, text, headers={"Retry-After": "1"})
        self._large[who] += 1
        self._counted = who

    def close(self) -> None:
        """The request is over."""
        if self._counted:
            self._large[self._counted] -= 1
            if not self._large[self._counted]:
                del self._large[self._counted]
