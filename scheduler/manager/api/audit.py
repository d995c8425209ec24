"""Routes of /v1/audit: who changed or read what, for operators."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response
from msgspec import Struct

from farside.scheduler.manager.api.answer import answer
from farside.scheduler.manager.api.openapi_document import says
from farside.scheduler.manager.api.route_arguments import Operator, Shared
from farside.scheduler.manager.view.audit import AuditLine, show_audit

router = APIRouter(prefix="/v1/audit", tags=["manager"])


class AuditPage(Struct, frozen=True, kw_only=True):
    """Lines of the audit, the newest first. ``before``: where older ones begin; null: there are none."""

    entries: list[AuditLine]
    before: int | None


@router.get("", responses=says(AuditPage, 422))
async def audit(
    _: Operator,
    shared: Shared,
    actor: Annotated[str, Query(max_length=200, description="Only entries of this user or token name")] = "",
    before: Annotated[int | None, Query(ge=1, le=2**62, description="Only entries before this one")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Audit lines, the newest first."""
    entries = await asyncio.to_thread(shared.log.store.told_by_people, actor=actor, before=before, limit=limit)
    last = entries[-1].seq if len(entries) == limit else None
    return answer(AuditPage(entries=[show_audit(entry, shared.log.state) for entry in entries], before=last))
