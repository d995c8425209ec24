"""Users of other machines, authenticated by a munge credential that is made for one request."""

import asyncio
from pathlib import Path

from fastapi import HTTPException, Request

from farside.errors import Unavailable
from farside.http_header import IDEMPOTENCY_KEY
from farside.munge import IS_OURS, MungeError, open_credential, request_mark

OPEN_LIMIT_S = 10.0


async def uid_of(request: Request, credential: str, socket: Path) -> int:
    """The uid of who made the credential, for this request.

    Raises:
        HTTPException: 401, it proves nothing; 503, munged does not answer.
    """
    try:
        # The timeout ends the wait and not the thread: a thread can not be cancelled.
        async with asyncio.timeout(OPEN_LIMIT_S):
            opened = await asyncio.to_thread(open_credential, credential, socket)
    except MungeError as error:
        raise HTTPException(503 if error.fault in IS_OURS else 401, str(error)) from error
    except (Unavailable, TimeoutError) as error:
        raise HTTPException(503, str(error) or "munged does not answer in time") from error
    query = request.scope.get("query_string", b"")
    target = request.scope["raw_path"] + (b"?" + query if query else b"")
    mark = request_mark(request.method, target.decode(), request.headers.get(IDEMPOTENCY_KEY, ""), await request.body())
    # A credential is bound to method, path, key and body: a stolen one can't be used for another request.
    if opened.payload != mark:
        raise HTTPException(401, "munge: this credential was made for another request")
    return opened.uid
