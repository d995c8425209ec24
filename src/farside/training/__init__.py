"""A member of a training job: declares its model, holds lanes to the job's Aggregators, and keeps them.

member.py           a member's session, whichever way its plan comes
static_plan.py      a plan without a manager: Aggregators and a key file that the user names
relay_plan.py       a plan by the node's agent, for a job of the manager's
service.py          which of the two a training script has asked for
exchange.py         iterations: what is complete and pushed, what has come back
region_place.py     where each tensor is in the region
iteration_report.py how long iterations take, for the node's agent

The rest is for PyTorch, and imports it:

attach.py, door.py  `farside.attach`, and what it refuses
server_update.py    the server has the optimizer
worker_update.py    `grad` gets the mean, for any optimizer
ddp.py              a communication hook of DistributedDataParallel
attachment.py       what these three share: hooks, checks, the user's handle
module_use.py       which parameters are used next, and waits for them
tensor_copy.py      copies into the region and out of it, for GPUs by pinned memory
optimizer_state.py  what the optimizer has, from the server and to it
trainable.py, optimizer_rule.py, sampled_words.py   checks of model, optimizer and gradients

Programs on NumPy, without PyTorch:

loop/               `farside.training.begin`: pull, compute by blocks, push; checkpoints
app/                four such programs, `farside train`

Runs in users' own processes: nothing of the first part imports torch or starts a thread when it is imported.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farside.training.loop.job import Job as Job
    from farside.training.loop.job import begin as begin


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Late: it imports NumPy, which a PyTorch script's members do without.
        if name in ("begin", "Job"):
            from farside.training.loop import job

            return getattr(job, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
