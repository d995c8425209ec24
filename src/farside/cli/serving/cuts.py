"""Which schedulers can do with a table's parts and a number of GPUs."""

from collections.abc import Collection
from pathlib import Path

from farside.cli.serve import IDEAL_GPUS_MAX
from farside.errors import ConfigError
from farside.scheduler.sharing.glet.portfolio import IDEAL_CUTS_MAX, ways_to_cut
from farside.serve.table import Tables


def check_cuts(table: Path, tables: Tables, schedulers: Collection[str], gpus: int) -> None:
    """Raises ConfigError if `half` has no halves there, or `ideal` too many cuts to try."""
    if "half" in schedulers and not any(cut == (50, 50) for cut in tables.device.cuts):
        raise ConfigError(f"{table}: has no latencies of 50 %", hint="choose another --scheduler than half")
    if "ideal" in schedulers:
        counts = range(1, min(gpus, IDEAL_GPUS_MAX) + 1)
        most = max((n for n in counts if ways_to_cut(tables.device, n) <= IDEAL_CUTS_MAX), default=0)
        if most < gpus:
            raise ConfigError(
                f"--scheduler ideal tries all cuts of --gpus {gpus}, which are too many",
                hint=f"give --gpus of {most} at most" if most else "choose another --scheduler than ideal",
            )
