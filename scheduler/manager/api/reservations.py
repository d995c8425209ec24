"""Routes of /v1/reservations: list, make, cancel; nodes kept free for maintenance.

Everybody sees reservations, with the numbers of own jobs there; only operators make and cancel them.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from msgspec import Meta, Struct

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.body import body_of
from farside.scheduler.manager.api.idempotency import Key
from farside.scheduler.manager.api.openapi_document import says, takes
from farside.scheduler.manager.api.route_arguments import CallersSight, Operator, Shared
from farside.scheduler.manager.field_limit import items
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.event import NodesReserved, ReservationCancelled
from farside.scheduler.manager.model.state import RequestKey
from farside.scheduler.manager.view.view import Reservation, show_reservation
from farside.units import format_moment

MAX_RESERVED = 100_000
router = APIRouter(prefix="/v1/reservations", tags=["nodes"])
_LINKS = {
    "unreserve": {"operationId": "reservations_unreserve", "parameters": {"reservation_id": "$response.body#/id"}}
}
_Moment = Annotated[float, Meta(ge=0, le=1e11, description="Seconds since 1970")]


class ReservationBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes on which nothing starts that could still run between two times."""

    nodes: Annotated[
        tuple[str, ...], Meta(min_length=1), items("Their names", MAX_RESERVED, "make several reservations")
    ]
    from_s: _Moment
    to_s: _Moment
    reason: Annotated[str, Meta(max_length=200)] = ""


class ReservationList(Struct, frozen=True, kw_only=True):
    """Reservations, the earliest first."""

    reservations: list[Reservation]


@router.get("", responses=says(ReservationList, 422))
async def reservations(
    sight: CallersSight,
    shared: Shared,
    everything: Annotated[bool, Query(alias="all", description="Also those that are over or cancelled")] = False,
) -> Response:
    """Reservations that are not over, the earliest first."""
    state, now_s = shared.log.state, shared.log.now_s()
    found = sorted(state.maintenance.values(), key=lambda one: (one.begin_s, one.reservation_id))
    shown = [show_reservation(one, state, now_s, sight) for one in found if everything or one.is_pending(now_s)]
    return answer(ReservationList(reservations=shown))


@router.post(
    "",
    status_code=201,
    responses=says(Reservation, 413, 422, status=201, links=_LINKS),
    openapi_extra=takes(ReservationBody),
)
async def reserve(
    caller: Operator,
    shared: Shared,
    body: Annotated[ReservationBody, Depends(body_of(ReservationBody))],
    key: Key = "",
) -> Response:
    """Start nothing on nodes that could still run at some time."""
    request = RequestKey(kind="reservation", user=caller.name, key=key)
    known = shared.idempotency.seq_of(request)
    if known is not None:
        return _made(known, shared.log)
    unknown = [name for name in body.nodes if name not in shared.log.state.nodes]
    if unknown:
        raise HTTPException(422, f"nodes: there is no node {unknown[0]:.64}")
    if not body.from_s < body.to_s:
        raise HTTPException(422, "to_s: must be later than from_s")
    if body.to_s <= shared.log.now_s():
        raise HTTPException(422, f"to_s: {format_moment(body.to_s)} is past already")
    nodes = tuple(dict.fromkeys(body.nodes))
    event = NodesReserved(
        nodes=nodes, begin_s=body.from_s, end_s=body.to_s, reason=body.reason, by=caller.name, key=key
    )
    return _made(await shared.idempotency.write(event, request, caller.told), shared.log)


@router.post("/{reservation_id}/cancel", responses=says(Reservation, 404, 409))
async def unreserve(caller: Operator, reservation_id: str, shared: Shared) -> Response:
    """Let jobs start there again."""
    log = shared.log
    found = log.state.maintenance.get(reservation_id)
    if found is None:
        raise HTTPException(404, f"there is no reservation {reservation_id:.60}")
    if not found.is_pending(log.now_s()):
        raise HTTPException(409, f"reservation {reservation_id} is over or cancelled")
    await log.write([ReservationCancelled(reservation_id=reservation_id, by=caller.name)], caller.told)
    return answer(show_reservation(log.state.maintenance[reservation_id], log.state, log.now_s()))


def _made(place: int, log: LiveLog) -> Response:
    """The reservation that an entry of the log has made."""
    made = log.state.maintenance[log.state.reserved[place]]
    return answer(show_reservation(made, log.state, log.now_s()), 201)
