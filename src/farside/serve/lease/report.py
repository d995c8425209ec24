"""The report of a deployment to the manager, once a second. PURE."""

import json
from collections.abc import Sequence

import msgspec

from farside.scheduler.manager.view.deployments import (
    CHANGES_MAX,
    GPUS_MAX,
    MODELS_MAX,
    REPORT_BYTES_MAX,
    DeployedChange,
    DeployedGpu,
    DeployedModel,
    DeployedPart,
    DeploymentBody,
)
from farside.serve.status import GletStatus, ServeStatus

TEXT_MAX = 300


def report_of(front: str, status: ServeStatus) -> DeploymentBody:
    """The status in the manager's words, each text cut to what the manager takes."""
    by_gpu: dict[int, list[GletStatus]] = {}
    for one in status.glets:
        by_gpu.setdefault(one.glet.gpu, []).append(one)
    return DeploymentBody(
        front=front,
        ready=status.ready,
        problem=status.problem[:TEXT_MAX],
        gpus=tuple(
            DeployedGpu(
                job=lease.job, node=lease.node, state=(lease.leaving and "leaving") or lease.state, left_s=lease.left_s,
                parts=_parts(by_gpu.get(lease.gpu, ())),
            )
            for lease in status.leases
        ),
        models=tuple(
            DeployedModel(
                name=one.name, slo_ms=one.slo_ms, rate=round(one.rate, 2), planned_rate=round(one.planned_rate, 2),
                p99_ms=round(one.p99_ms, 2), met=one.met, violated=one.late + one.failed,
                dropped=one.dropped + one.rejected,
            )
            for one in status.models
        ),
        changes=tuple(
            DeployedChange(at_s=one.at_s, cause=one.cause, gpus=one.gpus, problem=one.problem[:TEXT_MAX])
            for one in status.changes
        ),
    )  # fmt: skip


def fitting(body: DeploymentBody) -> DeploymentBody:
    """The report without what is more than the manager takes: REPORT_BYTES_MAX, and the limits of its lists.

    The oldest changes are left out first, then how GPUs are cut, then the last models, then the last GPUs: a lease that
    is not named is judged as any job is (docs/manager.md#idle-gpus).
    """
    replace = msgspec.structs.replace
    body = replace(
        body, gpus=body.gpus[:GPUS_MAX], models=body.models[:MODELS_MAX], changes=body.changes[-CHANGES_MAX:]
    )
    while body.changes and not _fits(body):
        body = replace(body, changes=body.changes[(len(body.changes) + 1) // 2 :])
    if not _fits(body):
        body = replace(body, gpus=tuple(replace(gpu, parts=()) for gpu in body.gpus))
    while body.models and not _fits(body):
        body = replace(body, models=body.models[: len(body.models) * 3 // 4])
    while not _fits(body):
        body = replace(body, gpus=body.gpus[: len(body.gpus) * 3 // 4])
    return body


def _fits(body: DeploymentBody) -> bool:
    return len(json.dumps(msgspec.to_builtins(body))) <= REPORT_BYTES_MAX


def _parts(glets: Sequence[GletStatus]) -> tuple[DeployedPart, ...]:
    return tuple(
        DeployedPart(
            part_pct=one.glet.part_pct,
            models=", ".join(f"{portion.model} x{portion.batch}" for portion in one.glet.models)[:TEXT_MAX],
            cycle_ms=round(one.glet.cycle_ms, 2),
            busy_pct=round(one.busy_pct, 1),
        )
        for one in glets
    )
