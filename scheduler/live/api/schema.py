"""The bodies that the API takes, as OpenAPI shows them. Unknown keys are refused.

All that is long is looked at for its length first, and a list is given up at its first wrong item: each thing that is
wrong is some hundred bytes here, and a million of them kept everybody waiting for half a minute.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from farside.agent.messages import ARGUMENTS_MAX, VARIABLES_MAX
from farside.scheduler.live.role import MAX_ROLES, Role, gpus_of, per_gpu
from farside.scheduler.live.spec import MAX_AFTER, MAX_COUNT, JobSpec, Ranks

# Of one body, or one role; the largest has thirty.
KEYS_MAX = 64
MAX_RESERVED = 100_000


def _at_most(limit: int, advice: str) -> BeforeValidator:
    """Refuses more by a line that says what to do."""

    def check(told: object) -> object:
        if isinstance(told, Sequence | Mapping) and len(told) > limit:
            said = {"limit": f"{limit:,}", "count": f"{len(told):,}", "advice": advice}
            raise PydanticCustomError("too_long", "at most {limit}, not {count}; {advice}", said)
        return told

    return BeforeValidator(check)


_Arguments = Annotated[
    tuple[str, ...], FailFast(), Field(max_length=ARGUMENTS_MAX), _at_most(ARGUMENTS_MAX, "put them in a file")
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_keys(cls, told: Any) -> Any:
        if isinstance(told, Mapping) and len(told) > KEYS_MAX:
            raise PydanticCustomError("too_long", "has {count} keys, and most are unknown", {"count": len(told)})
        return told


class RoleBody(_Body):
    """Processes of a job that are alike; `farside.scheduler.live.role` says what a role is."""

    name: str
    argv: _Arguments
    count: int = 1
    gpus: Annotated[int, Field(description="Of each process: 1 or 0")] = 1
    cpus: float = 0.0
    memory_bytes: float = 0.0
    swap_bytes: float = 0.0
    service: Annotated[bool, Field(description="It is told to end when all others have ended well")] = False

    def role(self) -> Role:
        """What the log keeps."""
        told = self.model_dump(exclude={"service"})
        return Role(**told, is_service=self.service)


class JobBody(_Body):
    """A job, or ``count`` jobs alike; as in a job file."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"argv": ["python", "train.py"], "gpus": 2, "cwd": "/home/ann", "time_limit_s": 7200}]
        }
    )

    argv: Annotated[
        _Arguments, Field(description="Program and arguments, run without a shell; of a job without roles")
    ] = ()
    gpus: Annotated[int, Field(description="GPUs over all nodes; all or none")] = 1
    name: str = ""
    account: Annotated[str, Field(description="Whom its GPU hours are charged to; empty: your first")] = ""
    qos: Annotated[str, Field(description="Its quality of service; empty: the default")] = ""
    cwd: str = "/"
    env: Annotated[dict[str, str], Field(max_length=VARIABLES_MAX), _at_most(VARIABLES_MAX, "put them in a file")] = {}
    ranks: Annotated[Ranks, Field(description="One process for each node, or for each GPU")] = Ranks.NODE
    gpu_model: str = ""
    cpus_per_gpu: float = 0.0
    memory_bytes_per_gpu: float = 0.0
    swap_bytes_per_gpu: Annotated[float, Field(description="Farside swap beyond its memory; 0: no swap at all")] = 0.0
    time_limit_s: float = 0.0
    grace_s: float = 30.0
    preemptible: Annotated[
        bool | None, Field(description="Whether others may take its GPUs; unless told, if it has a checkpoint_dir")
    ] = None
    checkpoint_dir: str = ""
    output: str = ""
    retries: int = 0
    after: Annotated[
        tuple[str, ...], FailFast(), Field(max_length=MAX_AFTER),
        _at_most(MAX_AFTER, "wait for one that waits for them"),
    ] = ()  # fmt: skip
    roles: Annotated[
        tuple[RoleBody, ...], FailFast(), _at_most(MAX_ROLES, "give processes that are alike one role"),
        Field(max_length=MAX_ROLES, description="Processes that are not alike, all started at once"),
    ] = ()  # fmt: skip
    model: Annotated[str, Field(description="What it trains, as Tiresias's Table 3.3 calls it: vgg16")] = ""
    profile: Annotated[
        bool | None,
        Field(description="Whether what it sends is noted; unless told, at first where jobs are placed by skew"),
    ] = None
    count: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1
    hold: bool = False

    def spec(self) -> JobSpec:
        """What the log keeps."""
        told = self.model_dump(exclude={"count", "hold", "roles"})
        if self.roles:
            roles = tuple(body.role() for body in self.roles)
            follows = {
                "argv": roles[0].argv,
                "gpus": gpus_of(roles),
                "cpus_per_gpu": per_gpu(roles, "cpus"),
                "memory_bytes_per_gpu": per_gpu(roles, "memory_bytes"),
                "swap_bytes_per_gpu": per_gpu(roles, "swap_bytes"),
            }
            told.update({name: value for name, value in follows.items() if name not in self.model_fields_set})
            told["roles"] = roles
        told["after"] = tuple(dict.fromkeys(self.after))
        told["preemptible"] = bool(self.checkpoint_dir) if self.preemptible is None else self.preemptible
        return JobSpec(**told)


class ReservationBody(_Body):
    """Nodes on which nothing starts that could still run between two times, seconds since 1970."""

    nodes: Annotated[
        tuple[str, ...], FailFast(), Field(min_length=1, max_length=MAX_RESERVED),
        _at_most(MAX_RESERVED, "make several reservations"),
    ]  # fmt: skip
    from_s: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
    to_s: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
    reason: Annotated[str, Field(max_length=200)] = ""


class DrainBody(_Body):
    """Why a node shall take nothing new."""

    reason: Annotated[str, Field(max_length=200)] = ""
