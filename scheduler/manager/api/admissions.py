"""Routes of /v1/admissions: which nodes may join. Operators invite a node, accept it, and revoke it.

An invitation is a token that one node of one name uses once, within a short time (agent/mutual_proof.py).
"""

import hashlib
import secrets
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response
from msgspec import Meta, Struct

from farside.agent.messages import GPUS_MAX
from farside.agent.mutual_proof import INVITATION
from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.body import body_of
from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.api.openapi_document import says, takes
from farside.scheduler.manager.api.route_arguments import Operator, Shared
from farside.scheduler.manager.model.event import NodeAccepted, NodeInvited, NodeRevoked
from farside.scheduler.manager.nodes.admission import AdmissionRow, admission_rows

router = APIRouter(prefix="/v1/admissions", tags=["nodes"])
VALID_S_MAX = 7 * 86_400.0
_Name = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$", description="Name of a node")]


class InvitationBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node will have, and for how long it may join. Figures that are left out are taken from its first HELLO."""

    valid_s: Annotated[float, Meta(gt=0, le=VALID_S_MAX, description="Seconds")] = 3600.0
    gpus: Annotated[int, Meta(ge=0, le=GPUS_MAX)] | None = None
    memory_bytes: Annotated[int, Meta(ge=0, le=2**62)] | None = None


class Invitation(Struct, frozen=True, kw_only=True):
    """An invitation; only this answer has it."""

    node: str
    invitation: str
    expires_s: float


class Admissions(Struct, frozen=True, kw_only=True):
    """Names of nodes, in the order of the alphabet."""

    admissions: tuple[AdmissionRow, ...]


@router.get("", responses=says(Admissions))
async def admissions(_: Operator, shared: Shared) -> Response:
    """All nodes that joined, may join, wait, or may not."""
    state = shared.log.state
    rows = admission_rows(state, shared.sessions.waiting.strangers(state), shared.log.now_s())
    return answer(Admissions(admissions=tuple(rows)))


@router.post("/{name}/invite", responses=says(Invitation, 413, 422), openapi_extra=takes(InvitationBody))
async def invite(
    caller: Operator,
    name: _Name,
    shared: Shared,
    body: Annotated[InvitationBody, Depends(body_of(InvitationBody))],
) -> Response:
    """Make an invitation for a node, in place of the one before it."""
    told = INVITATION + secrets.token_urlsafe(32)
    event = NodeInvited(
        node=name,
        key=hashlib.sha256(told.encode()).hexdigest(),
        expires_s=shared.log.now_s() + body.valid_s,
        gpus=body.gpus,
        memory_bytes=body.memory_bytes,
        by=caller.name,
    )
    await shared.log.write([event], caller.told)
    return answer(Invitation(node=name, invitation=told, expires_s=event.expires_s))


@router.post("/{name}/accept", responses=says(AdmissionRow, 422))
async def accept(caller: Operator, name: _Name, shared: Shared) -> Response:
    """Let a node join, or come again, with what it says that it has."""
    await shared.log.write([NodeAccepted(node=name, by=caller.name)], caller.told)
    return _shown(name, shared)


@router.post("/{name}/revoke", responses=says(AdmissionRow, 422))
async def revoke(caller: Operator, name: _Name, shared: Shared) -> Response:
    """End a node's session, and refuse it from now on, by whatever proof."""
    await shared.log.write([NodeRevoked(node=name, by=caller.name)], caller.told)
    return _shown(name, shared)


def _shown(name: str, shared: Context) -> Response:
    state = shared.log.state
    rows = admission_rows(state, {}, shared.log.now_s())
    return answer(next(row for row in rows if row.name == name))
