"""Routes of /v1/aggregation and /v1/groups: what jobs share. Everybody sees Aggregators and groups, and own jobs."""

from fastapi import APIRouter, Response

from farside.scheduler.manager.aggregation.show import AggregationReport
from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.openapi_document import says
from farside.scheduler.manager.api.route_arguments import Person, Shared
from farside.scheduler.manager.view.groups import GroupReport

router = APIRouter(prefix="/v1", tags=["jobs"])


@router.get("/aggregation", responses=says(AggregationReport))
async def aggregation(caller: Person, shared: Shared) -> Response:
    """Which jobs share which Aggregators, and what they lose by it."""
    return answer(shared.overviews.aggregation(caller))


@router.get("/groups", responses=says(GroupReport))
async def groups(caller: Person, shared: Shared) -> Response:
    """Which jobs take turns on which node, what bounds them, and how long an iteration takes."""
    return answer(shared.overviews.groups(caller))
