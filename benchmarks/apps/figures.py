"""What documents cite of the applications: ratios and losses by name. Pure."""

from collections.abc import Mapping
from typing import Any

from benchmarks.apps.plan import LEVELS_PCT
from benchmarks.apps.result import BackEnd, Results, Workload
from benchmarks.apps.summary import event_loss_pct, summary, throughput_gain


def apps_figures(results: Results) -> Mapping[str, Any]:
    """``gain/OURS/THEIRS/WORKLOAD/PERCENT``, ``loss/EVENT`` in percent, ``retreat/KEY/per_s`` and ``/p99_us``."""
    return {
        "gain": {
            ours: {
                theirs: {
                    workload: {
                        str(percent): throughput_gain(results, workload, ours, theirs, percent)
                        for percent in LEVELS_PCT
                    }
                    for workload in Workload
                }
                for theirs in BackEnd
            }
            for ours in BackEnd
        },
        "loss": {kind: event_loss_pct(kind, upsets) for kind, upsets in _events(results).items()},
        "retreat": {
            key: {"per_s": level.per_s, "p99_us": level.p99_us}
            for key, retreat in results.retreats.items()
            if (level := summary(retreat.windows)) is not None
        },
    }


def _events(results: Results) -> Mapping[str, Any]:
    return results.upsets.events if results.upsets else {}
