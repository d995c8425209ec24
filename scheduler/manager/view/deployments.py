"""Deployments of inference: `farside serve run` reports once a second, and is forgotten soon after it stops. PURE.

It is in memory alone: the log has a deployment's GPUs, as jobs that name it.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from farside.scheduler.manager.field_limit import items

DEPLOYMENTS_MAX = 256
USER_DEPLOYMENTS_MAX = 8
REPORT_BYTES_MAX = 64 << 10  # as of any request's body
FORGOTTEN_S = 10.0
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MODELS_MAX, GPUS_MAX, PARTS_MAX, CHANGES_MAX = 256, 256, 16, 60

_Text = Annotated[str, Meta(max_length=300)]
_Count = Annotated[int, Meta(ge=0)]
_Number = Annotated[float, Meta(ge=0)]


class DeployedPart(Struct, frozen=True, kw_only=True):
    """A part of a GPU: its models with their batches, its cycle, and the share of it that batches take as planned."""

    part_pct: Annotated[int, Meta(ge=1, le=100)]
    models: _Text
    cycle_ms: _Number
    busy_pct: _Number


class DeployedGpu(Struct, frozen=True, kw_only=True):
    """A GPU of a deployment: the job that holds it, where, its state, and how it is cut."""

    job: _Text
    node: _Text
    state: _Text
    left_s: _Number
    parts: Annotated[tuple[DeployedPart, ...], Meta(max_length=PARTS_MAX)] = ()


class DeployedModel(Struct, frozen=True, kw_only=True):
    """A model: rates in requests a second, its SLO, and what became of its requests since the front began."""

    name: _Text
    slo_ms: _Number
    rate: _Number
    planned_rate: _Number
    p99_ms: _Number
    met: _Count
    violated: _Count
    dropped: _Count


class DeployedChange(Struct, frozen=True, kw_only=True):
    """A change of the plan: when, why, and the GPUs afterwards; ``problem``: why there was none."""

    at_s: _Number
    cause: _Text
    gpus: _Count
    problem: _Text = ""


class DeploymentBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a deployment is. ``front``: which process says so; one name is one front's at a time."""

    front: Annotated[str, Meta(min_length=1, max_length=128)]
    ready: bool
    problem: _Text = ""
    gpus: Annotated[tuple[DeployedGpu, ...], items("Its GPUs", GPUS_MAX, "name those in use")] = ()
    models: Annotated[tuple[DeployedModel, ...], items("Its models", MODELS_MAX, "name those with requests")] = ()
    changes: Annotated[tuple[DeployedChange, ...], items("Its last changes", CHANGES_MAX, "name the last ones")] = ()


class Deployment(Struct, frozen=True, kw_only=True):
    """A deployment as its last report has it, and whose it is."""

    name: str
    user: str
    ready: bool
    problem: str
    gpus: tuple[DeployedGpu, ...]
    models: tuple[DeployedModel, ...]
    changes: tuple[DeployedChange, ...]


class DeploymentList(Struct, frozen=True, kw_only=True):
    """Deployments by name."""

    deployments: tuple[Deployment, ...]


class NotTaken(NamedTuple):
    """Why a report is not taken in. ``is_full``: there are too many; otherwise the name is another front's."""

    line: str
    is_full: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    told_s: float
    front: str
    deployment: Deployment


class Deployments:
    """Deployments with a recent report. Times are of one clock that never goes back."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], _Kept] = {}

    def tell(self, name: str, user: str, body: DeploymentBody, now_s: float) -> NotTaken | None:
        """Takes a report in; why it is refused, None where it is not."""
        self._forget(now_s)
        known = self._kept.get((user, name))
        if known is not None and known.front != body.front:
            line = f"deployment {name} of {user} is run by {known.front}; end that one, or choose another name"
            return NotTaken(line, is_full=False)
        if known is None and sum(user == other for other, _ in self._kept) >= USER_DEPLOYMENTS_MAX:
            return NotTaken(f"{USER_DEPLOYMENTS_MAX} deployments of {user} say how they are already", is_full=True)
        if known is None and len(self._kept) >= DEPLOYMENTS_MAX:
            return NotTaken(f"{DEPLOYMENTS_MAX} deployments say how they are already", is_full=True)
        told = Deployment(
            name=name, user=user, ready=body.ready, problem=body.problem, gpus=body.gpus, models=body.models,
            changes=body.changes,
        )  # fmt: skip
        self._kept[user, name] = _Kept(now_s, body.front, told)
        return None

    def end(self, name: str, user: str, front: str) -> bool:
        """Forgets one that has ended; False: it is not there, or another front's."""
        known = self._kept.get((user, name))
        if known is None or known.front != front:
            return False
        del self._kept[user, name]
        return True

    def of(self, user: str | None, now_s: float) -> tuple[Deployment, ...]:
        """Those of a user, or of all, by name."""
        self._forget(now_s)
        found = (one.deployment for one in self._kept.values() if user in (None, one.deployment.user))
        return tuple(sorted(found, key=lambda one: (one.name, one.user)))

    def _forget(self, now_s: float) -> None:
        self._kept = {key: one for key, one in self._kept.items() if now_s - one.told_s <= FORGOTTEN_S}
