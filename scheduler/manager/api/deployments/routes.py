"""Routes of /v1/deployments: what deployments of inference say of themselves, and each user's view of them."""

import re
import time
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from msgspec import Struct

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.body import body_of
from farside.scheduler.manager.api.openapi_document import refusals, says, takes
from farside.scheduler.manager.api.route_arguments import CallersSight, Person, Shared
from farside.scheduler.manager.view.deployments import FORGOTTEN_S, NAME, DeploymentBody, DeploymentList
from farside.scheduler.manager.view.safeguard import safeguards_of
from farside.scheduler.manager.view.view import JobInFull, show_job_in_full

router = APIRouter(prefix="/v1/deployments", tags=["manager"])
# Of other characters so many would be longer than any request's address may be.
_Ids = Annotated[
    str, Query(max_length=8192, pattern="^[A-Za-z0-9_,-]*$", description="Numbers of jobs, separated by commas")
]
_Front = Annotated[str, Query(max_length=128, description="The front that ends, as it called itself")]


@router.get("", responses=says(DeploymentList))
async def deployments(request: Request, caller: Person, shared: Shared) -> Response:
    """Deployments that run: of all for operators, their own for users."""
    if caller.is_operator:
        await shared.access_log.looked(caller, request, "deployments of all")
    user = None if caller.is_operator else caller.name
    return answer(DeploymentList(deployments=shared.deployments.of(user, time.monotonic())))


class LeaseList(Struct, frozen=True, kw_only=True):
    """Leases of a deployment, and the states of the nodes that they are on, by name."""

    jobs: list[JobInFull]
    nodes: dict[str, str]


@router.get("/{name}/leases", responses=says(LeaseList, 422))
async def leases(name: str, caller: Person, sight: CallersSight, shared: Shared, ids: _Ids = "") -> Response:
    """Those of the named jobs that are the caller's leases of this deployment, for a front that looks each second.

    What jobs are expected to take is left out.
    """
    state, now_s = shared.log.state, shared.log.now_s()
    known = [job for job_id in dict.fromkeys(ids.split(",")) if (job := state.jobs.get(job_id)) is not None]
    found = [job for job in known if (job.user, job.spec.deployment) == (caller.name, name)]
    shown = [show_job_in_full(job, now_s, safeguards=safeguards_of(job, state), sight=sight) for job in found]
    places = {node for job in shown for node in job.nodes}
    states = {node: state.nodes[node].state for node in places if node in state.nodes}
    return answer(LeaseList(jobs=shown, nodes=states))


@router.put("/{name}", status_code=204, responses=refusals(409, 413, 422, 429), openapi_extra=takes(DeploymentBody))
async def tell(
    name: str,
    caller: Person,
    shared: Shared,
    body: Annotated[DeploymentBody, Depends(body_of(DeploymentBody, is_strict=True))],
) -> Response:
    """Say how a deployment is; it is forgotten after ten seconds without a word."""
    if not re.fullmatch(NAME, name):
        raise HTTPException(422, "name: letters, digits, dots and dashes, 64 at most")
    refusal = shared.deployments.tell(name, caller.name, body, time.monotonic())
    if refusal is not None and refusal.is_full:
        if any(job.user == caller.name and job.spec.deployment == name for job in shared.log.state.live_jobs()):
            shared.sessions.fronts.heard(caller.name, name, shared.log.clock.now_s())  # so its leases wait on
        raise HTTPException(429, refusal.line, headers={"Retry-After": f"{FORGOTTEN_S:.0f}"})
    if refusal is not None:
        raise HTTPException(409, refusal.line)
    jobs = shared.log.state.jobs
    named = [found for gpu in body.gpus if (found := jobs.get(gpu.job)) is not None]
    leases = [job.job_id for job in named if (job.user, job.spec.deployment) == (caller.name, name)]
    shared.sessions.fronts.heard(caller.name, name, shared.log.clock.now_s(), leases)
    return Response(status_code=204)


@router.delete("/{name}", status_code=204, responses=refusals(404))
async def end(name: str, caller: Person, shared: Shared, front: _Front = "") -> Response:
    """Say that a deployment has ended."""
    if not shared.deployments.end(name, caller.name, front):
        raise HTTPException(404, f"deployment {name:.64}: you have no such one, or another front runs it")
    return Response(status_code=204)
