"""GPU counts in Slurm texts: ``gres:gpu:h100:2`` (22.05), ``gres/gpu:h100=2``, ``gpu:h100:4(IDX:0-3)``. PURE."""

import re

from farside.config.hostlist import expand

_GPU = re.compile(
    r"(?:^|,)(?:gres[:/])?gpu(?::(?P<model>(?!\d+(?:\(|,|$))[^:=,()]+))?(?:[:=](?P<count>\d{1,9}))?(?=\(|,|$)", re.ASCII
)
_MEMORY = re.compile(r"(?:^|,)mem=(\d{1,12}(?:\.\d{1,6})?)([KMGTP]?)", re.ASCII)
_UNIT = {"": 20, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}  # powers of two; without a letter MiB


def gpus_of(text: str) -> int:
    """Number of GPUs in a text. With a sum and its parts by model it is the sum."""
    found = [(match["model"], int(match["count"] or 1)) for match in _GPU.finditer(text)]
    plain = [count for model, count in found if not model]
    return plain[0] if plain else sum(count for _, count in found)


def model_of(text: str) -> str:
    """The one model of GPU that a text names, in small letters; empty: none, or several."""
    models = {match["model"].lower() for match in _GPU.finditer(text) if match["model"]}
    return models.pop() if len(models) == 1 else ""


def memory_bytes_of(text: str) -> float:
    """Memory of ``cpu=1,mem=10M,node=1``; 0 where it names none."""
    found = _MEMORY.search(text)
    return float(found.group(1)) * 2 ** _UNIT[found.group(2)] if found else 0.0


def gpus_asked(*, job: str, node: str, task: str, tres: str, nodes: int, tasks: int) -> tuple[int, str]:
    """GPUs that a job asks for in all, and their model, from what it asked by job, node or task.

    ``tres``: what Slurm made of it, which names GPUs only where AccountingStorageTRES does.
    """
    for text, times in ((job, 1), (node, nodes), (task, tasks)):
        if gpus := gpus_of(text):
            return gpus * max(1, times), model_of(text)
    return gpus_of(tres), model_of(tres)


def held_by_node(hosts: str, details: list[str], gpus: int) -> tuple[tuple[str, int], ...]:
    """GPUs on each node of a job. ``details``: Slurm's, a text a node; without them all nodes have as many."""
    names = expand(hosts)
    if len(details) == len(names):
        return tuple((name, count) for name, text in zip(names, details, strict=True) if (count := gpus_of(text)))
    if not names or not gpus:
        return ()
    share, rest = divmod(gpus, len(names))
    return tuple((name, share + (at < rest)) for at, name in enumerate(names) if share + (at < rest))
