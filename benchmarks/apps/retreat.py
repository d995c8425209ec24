"""A Memcached that fills up on a machine that has lent its memory, and on one that has not. [infiniswap Table 2.1]

The machine is a cgroup of the donor's guest, in which the donor and the cache are, and whose memory the donor reckons
with. At the start it has lent all but its HeadRoom; then the cache is stored, key by key, and what it grows by must
come from slabs that are recalled.
"""

import threading
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from benchmarks.apps.back_end import MODULE, farside
from benchmarks.apps.measure import now, run
from benchmarks.apps.meter import Meter
from benchmarks.apps.plan import WINDOW_S, WINDOWS
from benchmarks.apps.result import Moment, Retreat, Window, Workload
from benchmarks.apps.size import RETREAT_MIB, SLAB_MIB
from benchmarks.apps.stage import CGROUPS, Stage, Worker
from benchmarks.apps.talk import Talk
from benchmarks.load import BenchmarkError
from tests.vm.harness.program import HarnessError

GROUP = "donors/d1"
EVERY_S = 1.0
STORE_S = 600.0  # the longest that storing may take, on a host that does other work too
_ALONE = (
    f"cd {CGROUPS}; echo +memory >cgroup.subtree_control; mkdir -p donors; "
    "echo +memory >donors/cgroup.subtree_control; "
    f"mkdir -p {GROUP}; echo {RETREAT_MIB << 20} >{GROUP}/memory.max; echo 0 >{GROUP}/memory.swap.max"
)


class Watch:
    """Looks at the donor's memory once a second, meanwhile."""

    def __init__(self, stage: Stage, *, is_lending: bool) -> None:
        self._talk = Talk(stage.donor, f"{MODULE}.memory_watch {'/root/plane/d1.sock' if is_lending else ''}")
        self._talk.hear()
        self._said: list[Any] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def moments(self) -> tuple[Moment, ...]:
        """Ends it; what it saw."""
        self._over.set()
        self._thread.join()
        self._talk.close()
        return tuple(Moment(**one) for one in self._said)

    def _look(self) -> None:
        try:
            while not self._over.wait(EVERY_S):
                self._said.append(self._talk.ask_json("look"))
        except BenchmarkError:
            pass  # what was seen until then is kept


def retreat(stage: Stage, workload: Workload, *, is_lending: bool) -> Retreat:
    """One column of the table, and the curve beside it; with the reason where it broke off."""
    found = _Seen()
    date, trouble = now(), ""
    try:
        if is_lending:
            farside(stage.borrower, stage.donor, "fill {} {} {} tcp", memory_mib=RETREAT_MIB)
        else:
            stage.donor.run(_ALONE)
        found = _grow(stage, workload, is_lending=is_lending)
    except (BenchmarkError, HarnessError) as error:
        trouble = str(error).splitlines()[0]
    return Retreat(
        workload=workload,
        is_lending=is_lending,
        date=date,
        store=found.store,
        windows=found.windows,
        moments=found.moments,
        recalled_slabs=_recalled(found.moments),
        trouble=trouble,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    store: Window | None = None
    windows: tuple[Window, ...] = ()
    moments: tuple[Moment, ...] = ()


def _grow(stage: Stage, workload: Workload, *, is_lending: bool) -> _Seen:
    with (
        closing(Worker(stage.donor, workload, group=GROUP, stores=False)) as worker,
        closing(Meter(stage.borrower)) as there,
        closing(Meter(stage.donor)) as here,
    ):
        watch = Watch(stage, is_lending=is_lending)
        try:
            store = run(worker, here, there, STORE_S, command="store")
            windows = tuple(run(worker, here, there, WINDOW_S) for _ in range(WINDOWS))
        finally:
            moments = watch.moments()
    return _Seen(store=store, windows=windows, moments=moments)


def _recalled(moments: tuple[Moment, ...]) -> int:
    if not moments:
        return 0
    return (moments[0].lent_bytes - moments[-1].lent_bytes) // (SLAB_MIB << 20)
