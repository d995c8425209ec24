"""Table 3.1: why service has two dimensions. Schedulers that see only one of them, over one that sees both."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.policy_runs import AVERAGE, MEDIAN, P95, Play, missing, ratio_table, stages

PAPER = {"SF": ("1.52", "1.20", "3.45"), "SRTF": ("1.03", "1.01", "1.55")}
BASE = Play(label="SRSF", policy="srsf", placement="count")
PLAYS = (
    Play(label="SF", policy="sf", placement="count"),
    Play(label="SRTF", policy="srtf", placement="count"),
)


def figure(*, seeds: Sequence[int], data: Path) -> Figure:
    """JCT of SF and SRTF over that of SRSF."""
    return Figure(
        key="dimensions",
        title="Schedulers of one dimension, normalised by SRSF",
        source="tiresias Table 3.1, §3.3.2.1",
        tables=tuple(ratio_table(stage, PLAYS, BASE, (AVERAGE, MEDIAN, P95), PAPER) for stage in stages(seeds, data)),
        notes=(
            "The paper's trace and the size of its cluster are not public as it used them. SF loses everywhere, the"
            " more the busier the cluster; SRTF and SRSF are as close on average as the paper's, or nearly.",
            *missing(data),
        ),
    )
