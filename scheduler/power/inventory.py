"""Interface to what runs on a node: jobs from the scheduler, memory slabs from the donor."""

from typing import Protocol

from farside.scheduler.power.state import Holdings


class Inventory(Protocol):
    """Jobs, foreign memory slabs and reservations by node.

    Numbers of a node grow. A call with a smaller one than the node has seen is late, and changes nothing. All calls
    raise a FarsideError when an owner does not answer; a node of which one owner is silent is never taken for empty.
    """

    async def drain(self, node: str, number: int) -> None:
        """Close a node to new jobs, slabs and reservations; slabs begin to move to other donors."""
        ...

    async def open(self, node: str, number: int) -> None:
        """Open a node again."""
        ...

    async def holdings(self, node: str) -> Holdings:
        """What runs on a node, and the number of the DRAIN that closed the node, at one moment."""
        ...
