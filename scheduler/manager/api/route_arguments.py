"""Arguments of routes: the caller, a job that the caller may see, a node. Each refuses in one line.

``app.state.context`` is what they look into; `app.py` puts it there. All are ``async`` though hardly any waits: FastAPI
hands what is not to a thread, which takes ten times as long as the look itself.
"""

from typing import Annotated

from fastapi import Depends, HTTPException, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.auth.caller import Caller
from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.model.record import LiveJob, LiveNode
from farside.scheduler.manager.view.sight import Sight


def context_of(connection: HTTPConnection) -> Context:
    """The shared state of all routes."""
    context: Context = connection.app.state.context
    return context


async def _shared(connection: HTTPConnection) -> Context:
    return context_of(connection)


Shared = Annotated[Context, Depends(_shared)]


# For the OpenAPI document: `Callers` reads the header itself, and other proofs too.
_BEARER = HTTPBearer(auto_error=False, description="Over TCP. On the unix socket the kernel says who calls.")
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]


async def _anyone(connection: HTTPConnection, _: _Bearer) -> Caller:
    callers = context_of(connection).callers
    await callers.meet(connection)
    return callers.of(connection)


Anyone = Annotated[Caller, Depends(_anyone)]


async def _person(caller: Anyone) -> Caller:
    if caller.role is Role.NODE:
        raise HTTPException(403, "a node's token is for its agent's session only")
    return caller


Person = Annotated[Caller, Depends(_person)]


async def _operator(caller: Person) -> Caller:
    if not caller.is_operator:
        raise HTTPException(403, f"{caller.name} is not an operator")
    return caller


Operator = Annotated[Caller, Depends(_operator)]


async def _sight(caller: Person, shared: Shared) -> Sight:
    return shared.overviews.sight_of(caller)


CallersSight = Annotated[Sight, Depends(_sight)]


async def _own_job(connection: HTTPConnection, job_id: str, caller: Person, sight: CallersSight) -> LiveJob:
    shared = context_of(connection)
    state = shared.log.state
    job = state.jobs.get(job_id)
    # Whether others' jobs are there is none of a user's business.
    if job is None or not sight.has(job_id):
        if tasks := sight.array(state, job_id):
            span = f"{tasks[0].job_id} to {tasks[-1].job_id}"
            raise HTTPException(404, f"job {job_id:.60} is an array: {span}; name one of them")
        raise HTTPException(404, f"job {job_id:.60}: you have no such job")
    if job.user != caller.name and connection.scope["method"] == "GET":
        await shared.access_log.looked(caller, connection, f"job {job.job_id}")
    return job


OwnJob = Annotated[LiveJob, Depends(_own_job)]


async def _node_named(connection: HTTPConnection, name: str) -> LiveNode:
    node = context_of(connection).log.state.nodes.get(name)
    if node is None:
        raise HTTPException(404, f"there is no node {name:.64}")
    return node


NodeNamed = Annotated[LiveNode, Depends(_node_named)]
