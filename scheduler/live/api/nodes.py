"""/v1/nodes: list, show, drain, undrain."""

import asyncio

from fastapi import APIRouter, Response

from farside.scheduler.live.api.answer import Rows, answer
from farside.scheduler.live.api.depends import NodeNamed, Operator, Person
from farside.scheduler.live.api.schema import DrainBody
from farside.scheduler.live.api.shape import History, Node, NodeList, says
from farside.scheduler.live.event import DrainRequested, UndrainRequested
from farside.scheduler.live.follow import LiveLog
from farside.scheduler.live.maintenance import reserved_now
from farside.scheduler.live.record import LiveNode
from farside.scheduler.live.view import show_entry, show_node


def node_routes(log: LiveLog) -> APIRouter:
    """The routes about nodes. Everybody sees them; only operators change them."""
    router = APIRouter(prefix="/v1/nodes", tags=["nodes"])
    # What compares a pair looks first whether it is the same node, which is fast.
    rows: Rows[tuple[LiveNode, str]] = Rows(lambda seen: show_node(*seen))

    def shown(name: str) -> Response:
        return answer(show_node(log.state.nodes[name], reserved_now(log.state, log.now_s()).get(name, "")))

    @router.get("", summary="All nodes that ever joined", responses=says(NodeList))
    async def nodes(_: Person) -> Response:
        reserved = reserved_now(log.state, log.now_s())
        seen = [(name, (node, reserved.get(name, ""))) for name, node in sorted(log.state.nodes.items())]
        return await rows.answer("nodes", seen)

    @router.get("/{name}", summary="One node", responses=says(Node, 404))
    async def show(_: Person, node: NodeNamed) -> Response:
        return shown(node.name)

    @router.get("/{name}/history", summary="All that happened to a node", responses=says(History, 404))
    async def history(_: Operator, node: NodeNamed) -> Response:
        entries = await asyncio.to_thread(log.store.history, node.name)
        return answer({"entries": [show_entry(entry) for entry in entries]})

    @router.post("/{name}/drain", summary="Start nothing new on a node", responses=says(Node, 404, 413))
    async def drain(caller: Operator, node: NodeNamed, body: DrainBody) -> Response:
        await log.write([DrainRequested(node=node.name, reason=body.reason, by=caller.name)], caller.told)
        return shown(node.name)

    @router.post("/{name}/undrain", summary="Let jobs start on a node again", responses=says(Node, 404))
    async def undrain(caller: Operator, node: NodeNamed) -> Response:
        await log.write([UndrainRequested(node=node.name, by=caller.name)], caller.told)
        return shown(node.name)

    return router
