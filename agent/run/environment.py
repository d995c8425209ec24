"""Environment variables of a task. PURE."""

from collections.abc import Mapping
from types import MappingProxyType

from farside.agent import messages as m

PRELOAD_VARIABLE = "LD_PRELOAD"
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"
NO_NAMES: Mapping[int, str] = MappingProxyType({})
_OF_SOME = frozenset({"FARSIDE_RESUME", "FARSIDE_ARRAY_INDEX"})


def environment(
    start: m.Start,
    *,
    user: str,
    home: str,
    shell: str,
    ready_fd: int,
    ready_pipe: str,
    gpu_names: Mapping[int, str] = NO_NAMES,
) -> Mapping[str, str]:
    """The account's variables, then the job's own, then ours, which nobody overrides.

    MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are what `torch.distributed` reads with ``env://``. A task without
    GPUs has CUDA_VISIBLE_DEVICES empty, which hides them all; indexes are those of NVML, hence the order by bus. A part
    of a GPU stands there by its driver's name, and so does a whole one of ``gpu_names``: behind a fence CUDA counts
    only the GPUs that it can open, so that an index would name another.
    FARSIDE_RESUME is there only where the job was started before, and FARSIDE_ARRAY_INDEX only in an array.
    FARSIDE_READY is a file: a program may write a line to it when it has loaded all it needs and makes progress, and
    Farside learns how long that took. A line ``iteration SECONDS`` says how long an iteration of training took instead.
    FARSIDE_READY_PIPE is that file's device and inode: a launcher may have closed it, and its number be another's.
    """
    spec = start.spec
    job_id = m.job_of_task(start.task_id)
    account = {"PATH": PATH_DEFAULT, "HOME": home, "USER": user, "LOGNAME": user, "SHELL": shell, "LANG": "C.UTF-8"}
    ours = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(part or gpu_names.get(gpu, str(gpu)) for gpu, part in spec.devices),
        "MASTER_ADDR": spec.master_addr,
        "MASTER_PORT": str(spec.master_port),
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(spec.world_size),
        "FARSIDE_JOB": job_id,
        "FARSIDE_TASK": start.task_id,
        "FARSIDE_START": str(start.start),
        "FARSIDE_READY": f"/dev/fd/{ready_fd}",
        "FARSIDE_READY_PIPE": ready_pipe,
    }
    if spec.checkpoint_dir:
        ours["FARSIDE_CHECKPOINT_DIR"] = spec.checkpoint_dir
    if "_" in job_id:  # 3_0 is the first of array 3
        ours["FARSIDE_ARRAY_INDEX"] = job_id.rpartition("_")[2]
    if spec.resume:
        ours["FARSIDE_RESUME"] = "1"
    # What a job that submits others passes on of its own environment does not say so of them.
    job = {name: value for name, value in spec.env.items() if name not in _OF_SOME}
    # The later ones win.
    return {**account, **job, **ours}


def with_library(variables: Mapping[str, str], library: str, more: Mapping[str, str]) -> Mapping[str, str]:
    """These variables, and a library preloaded after those that the job preloads itself, with what it reads."""
    preloaded = ":".join(filter(None, (variables.get(PRELOAD_VARIABLE, ""), library)))
    return {**variables, PRELOAD_VARIABLE: preloaded, **more}
