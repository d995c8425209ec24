"""Routes of /v1/usage: GPU hours used in a span of time, of everybody for operators, of their own jobs for users."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response
from msgspec import Struct

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.openapi_document import says
from farside.scheduler.manager.api.route_arguments import Person, Shared
from farside.scheduler.manager.model.sleep_time import saved_kwh
from farside.scheduler.manager.view.usage import S_PER_H, By, UsageRow, show_usage, usage_of

DEFAULT_SPAN_S = 30 * 86400.0
router = APIRouter(prefix="/v1/usage", tags=["manager"])
_Moment = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970")]


class UsageReport(Struct, frozen=True, kw_only=True):
    """Usage in a time. ``known_from_s``: the log does not reach back further; null: it has all."""

    by: By
    from_s: float
    to_s: float
    gpu_power_w: float
    known_from_s: float | None
    asleep_node_hours: float
    idle_w: float
    saved_kwh: float
    rows: list[UsageRow]


@router.get("", responses=says(UsageReport, 422))
async def usage(
    caller: Person, shared: Shared, by: By = By.USER, from_s: _Moment = None, to_s: _Moment = None
) -> Response:
    """GPU hours, waiting and energy by user or account; of the last 30 days by default."""
    state, now_s = shared.log.state, shared.log.now_s()
    gpu_power_w, idle_w = shared.gpu_power_w, shared.power.setup.idle_w
    end_s = min(now_s, now_s if to_s is None else to_s)
    begin_s = end_s - DEFAULT_SPAN_S if from_s is None else from_s
    if begin_s > end_s:
        raise HTTPException(422, "from_s: must not be later than to_s or now")
    jobs = [job for job in state.jobs.values() if caller.is_operator or job.user == caller.name]
    rows = await asyncio.to_thread(usage_of, jobs, by, begin_s, end_s, gpu_power_w)
    slept_s = state.slept.node_s(begin_s, end_s)
    return answer(
        UsageReport(
            by=by,
            from_s=begin_s,
            to_s=end_s,
            gpu_power_w=gpu_power_w,
            known_from_s=state.forgotten_s or None,
            asleep_node_hours=slept_s / S_PER_H,
            idle_w=idle_w,
            saved_kwh=saved_kwh(slept_s, idle_w),
            rows=[show_usage(row) for row in rows],
        )
    )
