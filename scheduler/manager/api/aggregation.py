"""Route of /v1/aggregation: the Aggregators, and the jobs that share them. Everybody sees Aggregators, and own jobs."""

from fastapi import APIRouter, Response

from farside.scheduler.manager.aggregation.show import AggregationReport
from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.openapi_document import says
from farside.scheduler.manager.api.route_arguments import Person, Shared

router = APIRouter(prefix="/v1/aggregation", tags=["jobs"])


@router.get("", responses=says(AggregationReport))
async def aggregation(caller: Person, shared: Shared) -> Response:
    """Which jobs share which Aggregators, and what they lose by it."""
    return answer(shared.overviews.aggregation(caller))
