"""Routes of /v1/nodes: list, show, drain, undrain. Everybody sees nodes; only operators change them.

A drain is only written to the log here (`DrainRequested`). The scheduler process carries it out: its planner
(`scheduler/manager/decider/planner.py`) gives the node no new job.
"""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from msgspec import Meta, Struct

from farside.scheduler.manager.api.answer import Known, answer, listed, up_to_date
from farside.scheduler.manager.api.body import body_of
from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.api.openapi_document import lists, says, takes
from farside.scheduler.manager.api.route_arguments import NodeNamed, Operator, Person, Shared
from farside.scheduler.manager.model.event import DrainRequested, UndrainRequested
from farside.scheduler.manager.model.maintenance import reserved_now
from farside.scheduler.manager.view.listing import NodeListing
from farside.scheduler.manager.view.memory import NO_MEMORY
from farside.scheduler.manager.view.view import History, Node, NodeList, show_entry, show_node

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


class DrainBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a node shall take nothing new."""

    reason: Annotated[str, Meta(max_length=200)] = ""


@router.get("", responses=lists(NodeList))
async def nodes(_: Person, shared: Shared, known: Known = "") -> Response:
    """All nodes that ever joined."""
    log, listing = shared.log, shared.nodes

    def look() -> NodeListing:
        listing.look(log.state.nodes, reserved_now(log.state, log.now_s()), shared.owners.of, shared.memory())
        return listing

    await up_to_date(look)
    return listed(listing.mark, listing.pieces, known)


@router.get("/{name}", responses=says(Node, 404))
async def show(_: Person, node: NodeNamed, shared: Shared) -> Response:
    """One node."""
    return _shown(node.name, shared)


@router.get("/{name}/history", responses=says(History, 404))
async def history(_: Operator, node: NodeNamed, shared: Shared) -> Response:
    """All that happened to a node."""
    entries = await asyncio.to_thread(shared.log.store.history, node.name)
    return answer(History(entries=tuple(map(show_entry, entries))))


@router.post("/{name}/drain", responses=says(Node, 404, 413), openapi_extra=takes(DrainBody))
async def drain(
    caller: Operator, node: NodeNamed, shared: Shared, body: Annotated[DrainBody, Depends(body_of(DrainBody))]
) -> Response:
    """Start nothing new on a node."""
    event = DrainRequested(node=node.name, reason=body.reason, by=caller.name)
    await shared.log.write([event], caller.told)
    return _shown(node.name, shared)


@router.post("/{name}/undrain", responses=says(Node, 404))
async def undrain(caller: Operator, node: NodeNamed, shared: Shared) -> Response:
    """Let jobs start on a node again."""
    await shared.log.write([UndrainRequested(node=node.name, by=caller.name)], caller.told)
    return _shown(node.name, shared)


def _shown(name: str, shared: Context) -> Response:
    log = shared.log
    node, reserved = log.state.nodes[name], reserved_now(log.state, log.now_s())
    memory = shared.memory().get(name, NO_MEMORY)
    return answer(show_node(node, reserved.get(name, ""), shared.owners.of(node), memory))
