"""One job of `benchmarks.colocation_spill`: that of the co-location scene, with what is compared held fast.

``python -m benchmarks.colocation_spill_job OPTIONS``. The environment's FARSIDE_BENCH_FIXED is JSON: ``begins`` is the
share of its input on the disk that it begins with; ``spilled`` that share, and ``by_peer`` which part of it comes from
the peer, whatever the executor says. In the file that FARSIDE_BENCH_REPORT names it leaves what it has read and waited.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from farside.agent.training import alpha
from farside.agent.training.alpha import Keep
from farside.cli.demo.colocated_job import main
from farside.training.loop.spilled_blocks import SpilledBlocks
from farside.training.loop.spilling import SpillsBlocks

FIXED, REPORT = "FARSIDE_BENCH_FIXED", "FARSIDE_BENCH_REPORT"


def hold(fixed: dict[str, float]) -> None:
    """Holds it fast in this process."""
    begins = fixed.get("begins", fixed.get("spilled"))
    if begins is not None:
        share = begins
        alpha.first_share = lambda **_: share
    obeys = SpillsBlocks._obey

    def obey(spills: Any, keep: Keep | None) -> None:
        obeys(spills, keep)
        now: Keep = spills._blocks.keep
        spills._blocks.keep = Keep(
            spilled=fixed.get("spilled", now.spilled), by_peer=fixed.get("by_peer", now.by_peer)
        )  # fmt: skip

    patched: Any = SpillsBlocks
    patched._obey = obey


def report_to(path: Path) -> None:
    """Leaves, when its blocks are given up, what it has read from where, how long it waited, and its last share.

    ``iterations`` has a line of each: seconds since the one before, of which it computed, with waiting for blocks; the
    share on the disk, and which part of it it was to read from a peer; and what disk and peer are taken to deliver.
    """
    closes, pushes = SpilledBlocks.close, SpillsBlocks.pushed
    rows, ended_s = list[str](), list[float]()

    def pushed(spills: Any, model: Any, *, comp_s: float, net_s: float) -> None:
        pushes(spills, model, comp_s=comp_s, net_s=net_s)
        blocks, now_s = spills._blocks, time.monotonic()
        rates = " ".join("-" if cost is None else f"{cost.bytes_s / 1e6:.0f}" for cost in blocks.costs)
        if ended_s:
            rows.append(
                f"{now_s - ended_s.pop():.4f} {comp_s:.4f} {blocks.spilled:.3f} {blocks.keep.by_peer:.3f} {rates}"
            )
        ended_s.append(now_s)

    def close(blocks: Any) -> None:
        disk_bytes, peer_bytes = blocks.read_bytes
        found = {
            "disk_bytes": disk_bytes, "peer_bytes": peer_bytes, "waited_s": blocks.waited_s,
            "spilled": blocks.keep.spilled, "by_peer": blocks.keep.by_peer, "input_bytes": blocks.input_bytes,
            "iterations": rows,
        }  # fmt: skip
        path.write_text(json.dumps(found))
        closes(blocks)

    patched: Any = SpilledBlocks
    patched.close = close
    patched = SpillsBlocks
    patched.pushed = pushed


if __name__ == "__main__":
    hold(json.loads(os.environ.get(FIXED) or "{}"))
    if os.environ.get(REPORT):
        report_to(Path(os.environ[REPORT]))
    sys.exit(main(sys.argv[1]))
