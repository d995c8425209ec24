"""Facts of nodes for tests: what an agent of a node would say, with only that named which a test is about."""

from typing import Any

from farside.agent.messages import Gpu, NodeFacts, fields_of
from farside.scheduler.manager.model.event import NodeJoined


def gpus(count: int, model: str = "") -> tuple[Gpu, ...]:
    """So many healthy GPUs."""
    return tuple(Gpu(index=at, model=model, healthy=True) for at in range(count))


def facts(**more: Any) -> dict[str, Any]:
    """All of `NodeFacts`: a node without GPUs whose memory is not counted."""
    least = {"boot_id": "b", "version": "", "cpus": 64, "memory_bytes": 0, "headroom_bytes": 0, "gpus": (), **more}
    return fields_of(NodeFacts, NodeFacts(**least))


def joined(node: str, address: str = "h", **more: Any) -> NodeJoined:
    """The event by which a node with these facts joins."""
    return NodeJoined(node=node, address=address, **facts(**more))
