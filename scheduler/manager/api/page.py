"""Routes of /ui/: the web page's static files from the package, and signing in.

It asks ``/v1`` for all that it shows, so it shows nobody more than the API would.

Nothing but these files runs in it (Content-Security-Policy): no script from elsewhere, none inside the document, and
none that was text a moment ago (Trusted Types, where the browser has them).
"""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from msgspec import Meta, Struct

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.body import body_of
from farside.scheduler.manager.api.route_arguments import Shared
from farside.scheduler.manager.auth.caller import refuse_other_sites, unknown_caller
from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.auth.web_session import COOKIE, LASTS_S

FOLDER = Path(__file__).with_name("web")
START = "index.html"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


class SignIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of the page's sign-in form."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    body: bytes
    kind: str
    tag: str


@router.get("/")
async def root() -> Response:
    """Lead to the page."""
    return RedirectResponse("/ui/")


@router.get("/ui/")
async def start(request: Request) -> Response:
    """Send the page."""
    return _sent(_FILES[START], request)


@router.get("/ui/{name}")
async def file(name: str, request: Request) -> Response:
    """Send one file of the page."""
    if name not in _FILES:
        raise HTTPException(404, f"there is no {name:.60} here")
    return _sent(_FILES[name], request)


@router.post("/ui/session")
async def sign_in(request: Request, shared: Shared, body: Annotated[SignIn, Depends(body_of(SignIn))]) -> Response:
    """Give a browser a cookie for its token."""
    refuse_other_sites(request)
    caller = shared.callers.of_token(body.token.strip())
    if caller is None:
        raise unknown_caller("this token is not known here")
    if caller.role is Role.NODE:
        raise HTTPException(403, "a node's token is for its agent's session only")
    response = answer({"name": caller.name, "role": caller.role.value})
    response.set_cookie(
        COOKIE, shared.callers.cookie_for(body.token.strip(), time.time()), max_age=int(LASTS_S), path="/",
        secure=request.url.scheme == "https", httponly=True, samesite="strict",
    )  # fmt: skip
    return response


@router.delete("/ui/session")
async def sign_out(request: Request) -> Response:
    """Take the cookie back."""
    refuse_other_sites(request)
    response = answer({})
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _files() -> dict[str, _File]:
    """All of the page, in memory: it is small, and an upgrade must not mix two versions under a running manager."""
    found = {}
    for path in FOLDER.iterdir():
        if path.suffix in KINDS:
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
            found[path.name] = _File(body=body, kind=KINDS[path.suffix], tag=tag)
    return found


_FILES = _files()


def _sent(file: _File, request: Request) -> Response:
    headers = {**HEADERS, "ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=f"{file.kind}; charset=utf-8", headers=headers)
