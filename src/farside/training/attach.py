"""`farside.attach`: a model's gradients go to the shared Aggregators, and the training loop stays as it is."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from farside.training.door import Handle, open_door
from farside.training.member import MemberSession
from farside.training.service import source_of


def attach(
    model: Any,
    optimizer: Any,
    *,
    update: Literal["server", "worker"] = "server",
    overlap: bool = True,
    resume: Literal["service"] | None = None,
    find_unused_parameters: bool = False,
    service: Sequence[str] | str = (),
    key_file: str | os.PathLike[str] | None = None,
    job: str | None = None,
    rank: int | None = None,
    members: int | None = None,
) -> Handle:
    """Share this model's aggregation with the other jobs of the cluster: once, on every rank, before training.

    Every rank then has rank 0's values of all parameters that are trained. Frozen parameters, and buffers such as the
    statistics of BatchNorm, stay each rank's own. What is frozen now can't be trained later.

    Args:
        model: The model itself, not one that DistributedDataParallel or FSDP wraps.
        optimizer: Its optimizer.
        update: "server": the server has the optimizer (SGD, Adam, AdamW), and `step()` finds nothing to do. "worker":
            `grad` holds the mean of all ranks when `backward()` returns; for any optimizer, clipping and GradScaler.
        overlap: Bring each parameter before its first use. Otherwise the first module waits for all of them.
        resume: "service": go on from what the Aggregators have kept of this job, whatever was loaded here. None: go on
            from it, too, but refuse a checkpoint of another iteration that was loaded here.
        find_unused_parameters: Some parameters have no gradient in some iterations, and are to stay as they are then.
            With "worker" that is always so.
        service: Without a manager: Aggregators, as "unix:/PATH" or "tcp:HOST:PORT", the same on all ranks. Default of
            this and of what follows: what FARSIDE_AGGREGATION_SERVICE and the other variables say.
        key_file: Without a manager: the file with the service's key.
        job: Without a manager: the job's name, the same on all ranks.
        rank: Without a manager: which rank this is; default: as torchrun or Slurm has set it.
        members: Without a manager: how many ranks there are; default: as torchrun or Slurm has set it.

    Raises:
        FarsideError: this can't be aggregated, or the service can't be had: one line. Nothing has been changed.
    """
    return open_door(
        model,
        optimizer,
        update=update,
        overlap=overlap,
        resume=resume,
        find_unused_parameters=find_unused_parameters,
        source_of=partial(source_of, service, key_file, job=job, rank=rank, members=members),
        session_of=MemberSession,
    )
