"""Table 3.6: policies over Tiresias-L in simulation, and how often they preempt."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.policy_runs import AVERAGE, MEDIAN, P95, Play, missing, ratio_table, stages

# The limit of §3.5.4; the text gives none for this table. GPUs are only counted, as in the authors' simulator, but for
# YARN-CS, and Best-effort, which is YARN-CS that skips who has no room [§3.5.3].
LIMIT = ("limits_gpu_s", "1h")
BASE = Play(label="Tiresias-L", policy="las", placement="count", settings=(LIMIT,))
PLAYS = (
    Play(label="YARN-CS", policy="yarn-cs", placement="yarn"),
    Play(label="Best-effort", policy="best-effort", placement="yarn"),
    Play(label="SRTF", policy="srtf", placement="count"),
    Play(label="Gandiva", policy="timeshare", placement="count", settings=(("quantum_s", "1h"),)),
    Play(label="Tiresias-G", policy="gittins", placement="count", settings=(LIMIT,)),
)
PAPER = {
    "YARN-CS": ("2.41", "30.85", "1.25"),
    "Best-effort": ("1.50", "9.03", "1.08"),
    "SRTF": ("1.00", "1.00", "0.84"),
    "Gandiva": ("2.00", "2.59", "2.08"),
    "Tiresias-G": ("0.97", "1.00", "0.85"),
}


def figure(*, seeds: Sequence[int], data: Path) -> Figure:
    """JCT of each policy over that of Tiresias-L."""
    return Figure(
        key="simulation",
        title="Completion times in simulation, normalised by Tiresias-L",
        source="tiresias Table 3.6, §3.5.3.2",
        tables=tuple(ratio_table(stage, PLAYS, BASE, (AVERAGE, MEDIAN, P95), PAPER) for stage in stages(seeds, data)),
        notes=(
            "Another cluster, another load: the paper's ratios come from a trace and a size of cluster that it does not"
            " give. Ours are the same jobs under each policy, so the order of the policies is what can be compared.",
            "SRTF is well below 1 where the cluster is busy: the fewer GPUs are free, the more it is worth to know what"
            " is left of a job. With little waiting, as in the paper, all preemptive policies come together.",
            "Gandiva's slices are an hour here, for speed. On 2869ce slices of ten minutes give 415,078 s on average"
            " and 27,306 s in the median, an hour 445,622 and 51,094 s.",
            *missing(data),
        ),
    )
