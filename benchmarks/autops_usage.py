"""How busy parameter servers are, and what jobs lose by sharing: the paper's figures that need no running job. Pure."""

import csv
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.autops_sharing import ASSUMED, LIMITS
from benchmarks.figure import Figure, Table
from farside.scheduler.sharing.aggregation.cycle import Demand, best_cycle_s, loss, shared_iteration_s, work_s
from farside.scheduler.sharing.aggregation.placement import Placement
from farside.scheduler.sim.aggregation.models import BY_NAME, MODELS
from farside.units import MIB

# Table 4.2's models by the files of their tensors, with the table's tensors and MB. VGG19 and AWD-LM are the same
# models; its AlexNet is another variant of it, and its BERT is the large one.
FILES = {
    "AlexNet": ("alexnet.csv", 17, 236),
    "VGG19": ("vgg19.csv", 39, 548),
    "AWD-LM": ("awd-lm-1500.csv", 14, 396),
    "BERT": ("bert-large.csv", 393, 1278),
}
CHUNK_BYTES = 256 * 1024
# The testbed's 100 Gb/s, and what one core sums.
LINK_BYTES_S = 12.5e9
CPU_S_PER_BYTE = 0.5e-9
BACKWARD_SHARE = 2 / 3
WINDOW_S = 0.01
PAPER_USAGE = {("VGG19", 2): "16 %"}
PAPER_MOST = "below 50 %"


def tensor_bytes(path: Path) -> tuple[int, ...]:
    """Sizes of a model's tensors in forward order."""
    with path.open(newline="") as file:
        return tuple(int(row["bytes"]) for row in csv.DictReader(file))


def ready_times_s(tensors: Sequence[int], compute_s: float) -> list[tuple[float, int]]:
    """When each tensor's gradient is there, last tensor first; each takes an equal part of the backward pass."""
    step_s = compute_s * BACKWARD_SHARE / len(tensors)
    begin_s = compute_s * (1 - BACKWARD_SHARE)
    return [(begin_s + (number + 1) * step_s, size) for number, size in enumerate(reversed(tensors))]


def usage(tensors: Sequence[int], compute_s: float, workers: int) -> tuple[float, float]:
    """Cores that a single server needs at its peak, and the share of them that it uses on average.

    Chunks of all workers come over one link, one after the other, and each is summed by a core of its own as soon as it
    is there. An iteration ends when the last result has gone back over the link.
    """
    busy: dict[int, float] = {}
    free_s, chunk = 0.0, 0
    for ready_s, size in ready_times_s(tensors, compute_s):
        for begin in range(0, size, CHUNK_BYTES):
            chunk = min(CHUNK_BYTES, size - begin)
            free_s = max(free_s, ready_s) + workers * chunk / LINK_BYTES_S
            _add(busy, free_s, workers * chunk * CPU_S_PER_BYTE)
    end_s = free_s + workers * chunk * (CPU_S_PER_BYTE + 1 / LINK_BYTES_S)
    peak = math.ceil(max(busy.values()) / WINDOW_S)
    return peak, sum(busy.values()) / (peak * end_s)


def _add(busy: dict[int, float], begin_s: float, cpu_s: float) -> None:
    """Core seconds of one chunk to the windows in which it is summed."""
    while cpu_s > 0:
        window = int(begin_s / WINDOW_S)
        here_s = min(cpu_s, max((window + 1) * WINDOW_S - begin_s, 1e-9))
        busy[window] = busy.get(window, 0.0) + here_s
        begin_s, cpu_s = begin_s + here_s, cpu_s - here_s


def servers(data: Path) -> Figure:
    """Figure 4.2 and Table 4.2."""
    title, source, folder = "How busy a parameter server is", "autops Figure 4.2, Table 4.2", data / "autops"
    if not folder.exists():
        return Figure(
            key="autops-usage", title=title, source=source, tables=(), notes=(f"{folder} is not there: skipped.",)
        )
    tensors = {name: tensor_bytes(folder / file) for name, (file, _, _) in FILES.items()}
    rows = []
    for name, workers in itertools.product(FILES, (2, 4)):
        peak, share = usage(tensors[name], BY_NAME[name].iteration_s, workers)
        paper = PAPER_USAGE.get((name, workers), PAPER_MOST)
        rows.append((f"{name} (1s-{workers}w)", f"{peak:g}", f"{100 * share:.0f} %", paper))
    sizes = tuple(
        (name, f"{len(tensors[name])}", f"{sum(tensors[name]) / MIB:.0f}", f"{count}", f"{size}")
        for name, (_, count, size) in FILES.items()
    )
    return Figure(
        key="autops-usage",
        title=title,
        source=source,
        tables=(
            Table(caption="Of the cores that it reserves", header=("job", "cores", "ours", "paper"), rows=tuple(rows)),
            Table(caption="Models", header=("model", "tensors", "MiB", "paper", "paper's MB"), rows=sizes),
        ),
        notes=(
            "Simulated: tensors of today's models; the backward pass takes two thirds of the computation, in equal "
            f"parts by tensor; {8 * LINK_BYTES_S / 1e9:g} Gb/s; {CPU_S_PER_BYTE * 1e9:g} CPU seconds a GB. Reserved is "
            f"the peak of windows of {1000 * WINDOW_S:g} ms: the text does not say how long its are.",
            "Figure 4.2 is a picture; of it the text says 16 % for VGG19 with two workers, and below half for all.",
            "The table's MB are MiB. Its AlexNet is another variant than today's, which has one tensor less.",
            ASSUMED,
        ),
    )


def losses() -> Figure:
    """Figure 4.6, and of Figure 4.10 what cycles alone cost."""
    packed = [Demand(6.0, 2.0), Demand(12.0, 3.0)]
    cycle_s = best_cycle_s(packed, LIMITS)
    assert cycle_s is not None
    rows = (
        ("iterations of 6 and 12 together: cycle", f"{cycle_s:g}", "12"),
        ("their work in a cycle", f"{work_s(cycle_s, packed):g}", "7"),
        ("an iteration of 5 on a cycle of 12", f"{shared_iteration_s(12.0, 5.0):g}", "6"),
        ("its loss", f"{100 * loss(12.0, 5.0):.1f} %", "16.7 %"),
    )
    return Figure(
        key="autops-cycles",
        title="Cycles, and what jobs lose by them",
        source="autops Figures 4.6 and 4.10",
        tables=(
            Table(caption="Figure 4.6", header=("what", "ours", "paper"), rows=rows),
            Table(caption="Most loss in a group", header=("jobs", "Aggregators", "ours", "paper"), rows=_groups()),
        ),
        notes=(
            "The second table has what the floor of a cycle costs; jobs that wait for each other are measured, "
            "`python -m benchmarks.aggregation --sharing`. The paper's 9 % is the most that it measured in groups of "
            "one model.",
            ASSUMED,
        ),
    )


def _groups() -> tuple[tuple[str, ...], ...]:
    found = [(f"4 x {model.name}", [model] * 4) for model in MODELS]
    found += [(" + ".join(one.name for one in pair), list(pair)) for pair in itertools.combinations(MODELS, 2)]
    found.append(("all four", list(MODELS)))
    rows = []
    for name, models in found:
        placement = Placement(LIMITS)
        for number, model in enumerate(models):
            assert placement.add(model.profile(f"{number}", 2)) is None
        most = max(placement.losses().values())
        paper = "up to 9 %" if name.startswith("4 x") else "not measured"
        rows.append((name, f"{len(placement.aggregators)}", f"{100 * most:.1f} %", paper))
    return tuple(rows)
