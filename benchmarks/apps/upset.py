"""What the borrower's transactions lose when donors recall slabs, or fall silent. [infiniswap §2.7.4.1, Figure 2.16]

Six donors on one machine, each a process of its own. One that is stopped answers nothing and closes nothing, as a
machine without power; it does not come back.
"""

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from benchmarks.apps.back_end import MODULE, farside
from benchmarks.apps.measure import now, run
from benchmarks.apps.meter import Meter
from benchmarks.apps.plan import SETTLE_S, WINDOW_S, WINDOWS
from benchmarks.apps.result import Upset, Upsets, Window, Workload
from benchmarks.apps.size import DONORS
from benchmarks.apps.stage import Stage, Worker
from benchmarks.apps.talk import Talk
from benchmarks.load import BenchmarkError
from tests.vm.harness.program import HarnessError

LEVEL_PCT = 75
AFTER = 5  # windows from the event on: 20 s, in which a silent donor is given up after 5
DRAINED = ("d1", "d2", "d3")  # each recalls all it has lent, in a window of its own, and lends again
DRAIN = 'drain {"deadline_s": 2}'
SEED = 1
PLANE = "/root/plane"


class _Scene:
    """The guests with everything running."""

    def __init__(self, stage: Stage, worker: Worker, here: Meter, there: Meter) -> None:
        self._worker, self._here, self._there = worker, here, there
        self._donor = stage.donor
        self._borrowers_door = Talk(stage.borrower, f"{MODULE}.door 2>/root/door.err")
        self._donors_door = Talk(stage.donor, f"{MODULE}.door 2>/root/door.err")
        self._borrowers_door.hear()
        self._donors_door.hear()

    def close(self) -> None:
        """Ends what it asks by."""
        self._borrowers_door.close()
        self._donors_door.close()

    def windows(self, count: int) -> tuple[Window, ...]:
        return tuple(run(self._worker, self._here, self._there, WINDOW_S) for _ in range(count))

    def settle(self) -> None:
        run(self._worker, self._here, self._there, SETTLE_S)

    def status(self) -> Any:
        """What the borrower tells."""
        return self._borrowers_door.ask_json(f"{PLANE}/blockdev.sock status")

    def tell_donor(self, name: str, command: str) -> Any:
        """What a donor answers."""
        return self._donors_door.ask_json(f"{PLANE}/{name}.sock {command}")

    def signal_donor(self, pid: int, name: str) -> None:
        self._donor.run(f"kill -{name} {pid}")


def upsets(stage: Stage) -> Upsets:
    """All events; with those that were measured, and the reason, where it broke off."""
    events: dict[str, tuple[Upset, ...]] = {}
    date, trouble = now(), ""
    try:
        farside(stage.borrower, stage.donor, "borrow {} {} {} tcp", donors=DONORS)
        with (
            closing(Worker(stage.borrower, Workload.ORDERS)) as worker,
            closing(Meter(stage.borrower)) as here,
            closing(Meter(stage.donor)) as there,
            closing(_Scene(stage, worker, here, there)) as scene,
        ):
            scene.windows(WINDOWS)
            worker.limit(worker.memory_bytes() * LEVEL_PCT // 100)
            scene.settle()
            for kind, upset in _events(scene):
                events[kind] = (*events.get(kind, ()), upset)
    except (BenchmarkError, HarnessError) as error:
        trouble = str(error).splitlines()[0]
    return Upsets(date=date, events=events, trouble=trouble)


def _events(scene: _Scene) -> Iterator[tuple[str, Upset]]:
    yield "evictions", _evictions(scene)
    rng = random.Random(SEED)
    for _ in range(WINDOWS):
        yield "silent", _silence(scene, rng.choice(sorted(_held(scene))))
    held = _held(scene)
    yield "busiest", _silence(scene, max(held, key=lambda name: held[name]))


def _held(scene: _Scene) -> dict[str, float]:
    """Page I/O a second of what each donor that answers holds. Raises BenchmarkError when none does."""
    told = scene.status()
    activity = {donor["node"]: 0.0 for donor in told["donors"] if donor["state"] == "up"}
    for slab in told["slabs"]:
        if slab["donor"] in activity:
            activity[slab["donor"]] += slab["activity"]
    if not activity:
        raise BenchmarkError("no donor is left")
    return activity


def _silence(scene: _Scene, name: str) -> Upset:
    scene.settle()
    before = scene.windows(WINDOWS)
    pid = scene.tell_donor(name, "status")["pid"]
    scene.signal_donor(pid, "STOP")
    after = scene.windows(AFTER)
    scene.signal_donor(pid, "KILL")
    return Upset(before=before, after=after)


def _evictions(scene: _Scene) -> Upset:
    before = scene.windows(WINDOWS)
    recalled = _recalled(scene)
    after: list[Window] = []
    for name in DRAINED:
        scene.tell_donor(name, DRAIN)
        after += scene.windows(1)
        scene.tell_donor(name, "undrain")
    after += scene.windows(AFTER - len(DRAINED))
    return Upset(before=before, after=tuple(after), recalled_slabs=_recalled(scene) - recalled)


def _recalled(scene: _Scene) -> int:
    """Slabs that the borrower has given back so far."""
    counters = scene.status()["counters"]
    return int(counters["migrations"] + counters["evictions"])
