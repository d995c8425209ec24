"""The bodies that the API takes, as OpenAPI shows them. Unknown keys are refused."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from farside.scheduler.live.spec import MAX_COUNT, JobSpec, Ranks


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JobBody(_Body):
    """A job, or ``count`` jobs alike; as in a job file."""

    argv: Annotated[tuple[str, ...], Field(min_length=1, description="Program and arguments, run without a shell")]
    gpus: Annotated[int, Field(description="GPUs over all nodes; all or none")] = 1
    name: str = ""
    account: str = ""
    cwd: str = "/"
    env: dict[str, str] = {}
    ranks: Annotated[Ranks, Field(description="One process for each node, or for each GPU")] = Ranks.NODE
    gpu_model: str = ""
    cpus_per_gpu: float = 0.0
    memory_bytes_per_gpu: float = 0.0
    time_limit_s: float = 0.0
    grace_s: float = 30.0
    preemptible: Annotated[
        bool | None, Field(description="Whether others may take its GPUs; unless told, if it has a checkpoint_dir")
    ] = None
    checkpoint_dir: str = ""
    output: str = ""
    retries: int = 0
    after: tuple[str, ...] = ()
    count: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1
    hold: bool = False

    def spec(self) -> JobSpec:
        """What the log keeps."""
        told = self.model_dump(exclude={"count", "hold"})
        told["preemptible"] = bool(self.checkpoint_dir) if self.preemptible is None else self.preemptible
        return JobSpec(**told)


class DrainBody(_Body):
    """Why a node shall take nothing new."""

    reason: Annotated[str, Field(max_length=200)] = ""
