"""/v1/nodes: list, show, drain, undrain."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from msgspec import Meta, Struct

from farside.scheduler.live.api.answer import Known, answer, listed, up_to_date
from farside.scheduler.live.api.body import body_of
from farside.scheduler.live.api.depends import NodeNamed, Operator, Person
from farside.scheduler.live.api.document import lists, says, takes
from farside.scheduler.live.event import DrainRequested, UndrainRequested
from farside.scheduler.live.follow import LiveLog
from farside.scheduler.live.listing import NodeListing
from farside.scheduler.live.maintenance import reserved_now
from farside.scheduler.live.view import History, Node, NodeList, show_entry, show_node


class DrainBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a node shall take nothing new."""

    reason: Annotated[str, Meta(max_length=200)] = ""


def node_routes(log: LiveLog) -> APIRouter:
    """The routes about nodes. Everybody sees them; only operators change them."""
    router = APIRouter(prefix="/v1/nodes", tags=["nodes"])
    listing = NodeListing()

    def look() -> NodeListing:
        listing.look(log.state.nodes, reserved_now(log.state, log.now_s()))
        return listing

    def shown(name: str) -> Response:
        return answer(show_node(log.state.nodes[name], reserved_now(log.state, log.now_s()).get(name, "")))

    @router.get("", summary="All nodes that ever joined", responses=lists(NodeList))
    async def nodes(_: Person, known: Known = "") -> Response:
        await up_to_date(look)
        return listed(listing.mark, listing.pieces, known)

    @router.get("/{name}", summary="One node", responses=says(Node, 404))
    async def show(_: Person, node: NodeNamed) -> Response:
        return shown(node.name)

    @router.get("/{name}/history", summary="All that happened to a node", responses=says(History, 404))
    async def history(_: Operator, node: NodeNamed) -> Response:
        entries = await asyncio.to_thread(log.store.history, node.name)
        return answer(History(entries=tuple(map(show_entry, entries))))

    @router.post(
        "/{name}/drain", summary="Start nothing new on a node", responses=says(Node, 404, 413),
        openapi_extra=takes(DrainBody),
    )  # fmt: skip
    async def drain(
        caller: Operator, node: NodeNamed, body: Annotated[DrainBody, Depends(body_of(DrainBody))]
    ) -> Response:
        await log.write([DrainRequested(node=node.name, reason=body.reason, by=caller.name)], caller.told)
        return shown(node.name)

    @router.post("/{name}/undrain", summary="Let jobs start on a node again", responses=says(Node, 404))
    async def undrain(caller: Operator, node: NodeNamed) -> Response:
        await log.write([UndrainRequested(node=node.name, by=caller.name)], caller.told)
        return shown(node.name)

    return router
