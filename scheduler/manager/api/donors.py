"""Routes of /v1/donors: the donors of memory, their addresses, and the memory that each borrower has there.

Agents are told by their sessions; this is for nodes without one, and for people.
"""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response
from msgspec import UNSET, Struct, UnsetType

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.openapi_document import says
from farside.scheduler.manager.api.route_arguments import Anyone, Shared
from farside.scheduler.manager.auth.caller import Caller
from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.model.record import Admission, LiveNode
from farside.scheduler.manager.nodes.admission import refusal_of_revoked
from farside.scheduler.manager.view.overview import Loan, Sensed, show_loans

router = APIRouter(prefix="/v1/donors", tags=["nodes"])


class Donor(Struct, frozen=True, kw_only=True):
    """A donor. Its node, and who has how much of it, are left out where one node asks where it may borrow."""

    donor: str
    control: str
    rdma: bool
    node: str | UnsetType = UNSET
    lends: bool | UnsetType = UNSET
    lendable_bytes: int | UnsetType = UNSET
    loans: list[Loan] | UnsetType = UNSET


class DonorList(Struct, frozen=True, kw_only=True):
    """Donors by the name of their node, or those of one node."""

    donors: list[Donor]


@router.get("", responses=says(DonorList, 404))
async def donors(
    caller: Anyone,
    shared: Shared,
    node: Annotated[str | None, Query(description="The borrower; a node's token may ask only for its own node")] = None,
) -> Response:
    """Donors: all of them, or those that one node may borrow from."""
    state = shared.log.state
    borrower, nodes = _borrower(caller, node, state.admissions), state.nodes
    if borrower is None:
        told = shared.sessions.sensed()
        lenders = (one for _, one in sorted(nodes.items()) if one.donor is not None)
        return answer(DonorList(donors=[_show(one, told.get(one.name, Sensed())) for one in lenders]))
    found = nodes.get(borrower)
    if found is None:
        raise HTTPException(404, f"there is no node {borrower:.64}")
    near = shared.sessions.ring.of(found)
    return answer(DonorList(donors=[Donor(donor=one.node, control=one.control, rdma=one.has_rdma) for one in near]))


def _borrower(caller: Caller, asked: str | None, admissions: Mapping[str, Admission]) -> str | None:
    """The borrower whose donors are shown; None: all. A revoked node learns no address, by whatever proof. [M9]"""
    if caller.role is not Role.NODE:
        return asked
    if not caller.name:
        raise HTTPException(403, "a token for any node counts no more: `farside token NAME` makes one node's own")
    if asked not in (None, caller.name):
        raise HTTPException(403, f"node {caller.name} may not ask for node {asked:.64}")
    if admissions.get(caller.name, Admission()).is_revoked:
        raise HTTPException(403, refusal_of_revoked(caller.name))
    return caller.name


def _show(node: LiveNode, told: Sensed) -> Donor:
    donor = node.donor
    assert donor is not None
    return Donor(
        node=node.name,
        donor=donor.node,
        control=donor.control,
        rdma=donor.has_rdma,
        lends=node.is_up and told.lends,
        lendable_bytes=told.lendable_bytes,
        loans=show_loans(told),
    )
