"""/v1/nodes: list, show, drain, undrain."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Response
from starlette.requests import HTTPConnection

from farside.scheduler.live.api.answer import answer
from farside.scheduler.live.api.caller import Caller, Callers, Role
from farside.scheduler.live.api.schema import DrainBody
from farside.scheduler.live.event import DrainRequested, UndrainRequested
from farside.scheduler.live.follow import LiveLog
from farside.scheduler.live.record import LiveNode
from farside.scheduler.live.view import show_entry, show_node


def node_routes(log: LiveLog, callers: Callers) -> APIRouter:
    """The routes about nodes. Everybody sees them; only operators change them."""
    router = APIRouter(prefix="/v1/nodes", tags=["nodes"])

    def known(connection: HTTPConnection) -> Caller:
        caller = callers.of(connection)
        if caller.role is Role.NODE:
            raise HTTPException(403, "a node's token may not ask for nodes")
        return caller

    def operator(caller: Annotated[Caller, Depends(known)]) -> Caller:
        if not caller.is_operator:
            raise HTTPException(403, f"{caller.name} is no operator")
        return caller

    Who = Annotated[Caller, Depends(known)]
    Operator = Annotated[Caller, Depends(operator)]

    def node_named(name: str) -> LiveNode:
        node = log.state.nodes.get(name)
        if node is None:
            raise HTTPException(404, f"there is no node {name:.64}")
        return node

    Named = Annotated[LiveNode, Depends(node_named)]

    @router.get("", summary="All nodes that ever joined")
    async def nodes(_: Who) -> Response:
        return answer({"nodes": [show_node(node) for _, node in sorted(log.state.nodes.items())]})

    @router.get("/{name}", summary="One node")
    async def show(_: Who, node: Named) -> Response:
        return answer(show_node(node))

    @router.get("/{name}/history", summary="All that happened to a node")
    async def history(_: Operator, node: Named) -> Response:
        entries = await asyncio.to_thread(log.store.history, node.name)
        return answer({"entries": [show_entry(entry) for entry in entries]})

    @router.post("/{name}/drain", summary="Start nothing new on a node")
    async def drain(caller: Operator, node: Named, body: DrainBody) -> Response:
        await log.write([DrainRequested(node=node.name, reason=body.reason, by=caller.name)], caller.told)
        return answer(show_node(log.state.nodes[node.name]))

    @router.post("/{name}/undrain", summary="Let jobs start on a node again")
    async def undrain(caller: Operator, node: Named) -> Response:
        await log.write([UndrainRequested(node=node.name, by=caller.name)], caller.told)
        return answer(show_node(log.state.nodes[node.name]))

    return router
