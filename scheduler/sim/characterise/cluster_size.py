"""GPUs of each virtual cluster of a log: from a file, or from the most in use at once. PURE."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farside.errors import ConfigError
from farside.scheduler.sim.characterise.usage_over_time import peak_use
from farside.scheduler.sim.cluster import WHOLE, VcSize
from farside.scheduler.sim.trace.log import JobLog
from farside.scheduler.table import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """GPUs of a cluster's virtual clusters over time.

    Attributes:
        by_vc: Of each virtual cluster by time, as ``--vc-nodes`` has them; one nameless part where it is one pool.
        gpus_per_node: Of each node.
        is_guess: The size was not given; it is the most that was in use at once, in whole nodes.
        is_pool: Virtual clusters of the log share all nodes.
    """

    by_vc: tuple[VcSize, ...]
    gpus_per_node: int
    is_guess: bool = False
    is_pool: bool = False

    @property
    def largest(self) -> Mapping[str, int]:
        """Largest number of GPUs that each virtual cluster ever has."""
        found: dict[str, int] = {}
        for size in self.by_vc:
            found[size.vc] = max(found.get(size.vc, 0), size.gpus)
        return found

    @property
    def gpus(self) -> int:
        """GPUs of all virtual clusters, each at its largest."""
        return sum(self.largest.values())

    def at(self, times_s: Floats, vc: str | None = None) -> Floats:
        """GPUs of one virtual cluster, or of all, at these times; before the first entry as at it."""
        return gpus_at([one for one in self.by_vc if vc is None or one.vc == vc], times_s)

    @property
    def parts(self) -> Mapping[str, tuple[VcSize, ...]]:
        """The entries of each virtual cluster."""
        found: dict[str, list[VcSize]] = {}
        for size in self.by_vc:
            found.setdefault(size.vc, []).append(size)
        return {name: tuple(sizes) for name, sizes in found.items()}


def gpus_at(entries: Iterable[VcSize], times_s: Floats) -> Floats:
    """GPUs of virtual clusters together at these times; of each before its first entry as at it.

    One staircase of all that changes, so that thousands of virtual clusters cost one sort.
    """
    has: dict[str, int] = {}
    first, changes = 0, []
    for one in sorted(entries, key=lambda one: one.from_s):
        if one.vc in has:
            changes.append((one.from_s, one.gpus - has[one.vc]))
        else:
            first += one.gpus
        has[one.vc] = one.gpus
    level = np.cumsum([first, *(change for _, change in changes)]).astype(float)
    found: Floats = level[np.searchsorted([at_s for at_s, _ in changes], times_s, side="right")]
    return found


def sizes_of(log: JobLog, *, nodes: int = 0, gpus_per_node: int = 8, vc_sizes: Sequence[VcSize] = ()) -> Sizes | None:
    """Cluster sizes as given, or guessed from the log; None if the log has no starts.

    Raises:
        ConfigError: Both ways of telling were used, or a virtual cluster of the log is not among those told.
    """
    if nodes and vc_sizes:
        raise ConfigError("--nodes and --vc-nodes exclude each other", hint="leave one of them out")
    if nodes:
        size = VcSize(vc=WHOLE, gpus=nodes * gpus_per_node)
        return Sizes(by_vc=(size,), gpus_per_node=gpus_per_node, is_pool=True)
    if vc_sizes:
        known = {size.vc for size in vc_sizes}
        missing = [name for name in log.vcs if name not in known]
        if len(missing) == len(log.vcs):
            raise ConfigError(
                f"--vc-nodes names none of the log's virtual clusters, such as '{next(iter(log.vcs), '')}'",
                hint=f"it names {', '.join(sorted(known)[:5])}",
            )
        return Sizes(by_vc=tuple(vc_sizes), gpus_per_node=gpus_per_node)
    if np.isnan(log.start_s).all():
        return None
    return Sizes(by_vc=tuple(_guessed(log, gpus_per_node)), gpus_per_node=gpus_per_node, is_guess=True)


def _guessed(log: JobLog, gpus_per_node: int) -> list[VcSize]:
    parts = [(name, log.vc == code) for code, name in enumerate(log.vcs)]
    nameless = log.vc < 0
    if nameless.any():
        parts.append((WHOLE, nameless))
    found: list[VcSize] = []
    for name, rows in parts:
        gpus = peak_use(log.start_s[rows], log.duration_s[rows], log.gpus[rows].astype(float))
        if gpus:
            found.append(VcSize(vc=name, gpus=-(-int(gpus) // gpus_per_node) * gpus_per_node))
    return found
