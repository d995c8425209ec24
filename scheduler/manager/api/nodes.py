"""Routes of /v1/nodes: list, show, drain, undrain, lend, swap. Everybody sees nodes; only operators change them.

A user sees the numbers of own jobs there; of others' jobs, which GPUs they have.

A drain is only written to the log here (`DrainRequested`). The scheduler process carries it out: its planner
(`scheduler/manager/decider/planner.py`) gives the node no new job.

What a node lends at most, and the size of its swap, are written likewise (`LendingOrdered`, `SwapOrdered`). The node's
agent sees to it, as orders of its services `donor` and `swap` (`scheduler/manager/nodes/services.py`).
"""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Response
from msgspec import Meta, Struct

from farside.scheduler.manager.api.answer import Known, answer, listed, up_to_date
from farside.scheduler.manager.api.body import body_of
from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.api.openapi_document import lists, says, takes
from farside.scheduler.manager.api.route_arguments import CallersSight, NodeNamed, Operator, Person, Shared
from farside.scheduler.manager.model.event import DrainRequested, LendingOrdered, SwapOrdered, UndrainRequested
from farside.scheduler.manager.model.maintenance import reserved_now
from farside.scheduler.manager.nodes.memory_orders import why_not_lend, why_not_swap
from farside.scheduler.manager.view.listing import NodesSeen
from farside.scheduler.manager.view.memory import NO_MEMORY
from farside.scheduler.manager.view.sight import SEES_ALL, Sight
from farside.scheduler.manager.view.view import History, Node, NodeList, show_entry, show_node

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


class DrainBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a node shall take nothing new."""

    reason: Annotated[str, Meta(max_length=200)] = ""


class LendBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that a node's donor shall lend; null: what its own settings allow.

    ``is_question``: only whether that would be refused.
    """

    at_most_bytes: Annotated[int, Meta(ge=0, le=2**62)] | None
    is_question: bool = False


class SwapBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size that a node's swap in other nodes' memory shall have; 0: none, null: what its own settings say.

    ``is_question``: only whether that would be refused.
    """

    size_bytes: Annotated[int, Meta(ge=0, le=2**62)] | None
    is_question: bool = False


@router.get("", responses=lists(NodeList))
async def nodes(caller: Person, shared: Shared, known: Known = "") -> Response:
    """All nodes that ever joined."""
    log = shared.log

    def look() -> NodesSeen:
        state = log.state
        reserved = reserved_now(state, log.now_s())
        shared.nodes.look(state.nodes, reserved, shared.owners.of, shared.memory(), state.jobs)
        return shared.nodes.seen_by(shared.overviews.sight_of(caller))

    seen = await up_to_date(look)
    return listed(seen.mark, seen.pieces, known)


@router.get("/{name}", responses=says(Node, 404))
async def show(sight: CallersSight, node: NodeNamed, shared: Shared) -> Response:
    """One node."""
    return _shown(node.name, shared, sight)


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


@router.post("/{name}/lend", responses=says(Node, 404, 409, 413), openapi_extra=takes(LendBody))
async def lend(
    caller: Operator, node: NodeNamed, shared: Shared, body: Annotated[LendBody, Depends(body_of(LendBody))]
) -> Response:
    """Bound what a node's donor lends, or take the bound back."""
    refusal = why_not_lend(node, shared.sessions.sensed().get(node.name), body.at_most_bytes)
    if refusal:
        raise HTTPException(409, refusal)
    if body.is_question:
        return _shown(node.name, shared)
    event = LendingOrdered(node=node.name, lend_bytes=body.at_most_bytes, by=caller.name)
    await shared.log.write([event], caller.told)
    return _shown(node.name, shared)


@router.post("/{name}/swap", responses=says(Node, 404, 409, 413), openapi_extra=takes(SwapBody))
async def swap(
    caller: Operator, node: NodeNamed, shared: Shared, body: Annotated[SwapBody, Depends(body_of(SwapBody))]
) -> Response:
    """Say which size a node's swap shall have, or take that back."""
    refusal = why_not_swap(node, shared.sessions.sensed().get(node.name), body.size_bytes, shared.log.state)
    if refusal:
        raise HTTPException(409, refusal)
    if body.is_question:
        return _shown(node.name, shared)
    await shared.log.write([SwapOrdered(node=node.name, swap_bytes=body.size_bytes, by=caller.name)], caller.told)
    return _shown(node.name, shared)


def _shown(name: str, shared: Context, sight: Sight = SEES_ALL) -> Response:
    log = shared.log
    node, reserved = log.state.nodes[name], reserved_now(log.state, log.now_s())
    memory = shared.memory().get(name, NO_MEMORY)
    return answer(show_node(node, reserved.get(name, ""), shared.owners.of(node), memory, sight))
