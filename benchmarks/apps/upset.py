"""What the borrower's transactions lose when donors recall slabs, or fall silent. [infiniswap §2.7.4.1, Figure 2.16]

Six donors on one machine, each a process of its own. One that is stopped answers nothing and closes nothing, as a
machine without power; it does not come back.
"""

import json
import random
from contextlib import closing
from typing import Any

from benchmarks.apps.back_end import farside, throttle
from benchmarks.apps.measure import now, run
from benchmarks.apps.meter import Meter
from benchmarks.apps.plan import SETTLE_S, WINDOW_S, WINDOWS
from benchmarks.apps.result import Upset, Upsets, Window, Workload
from benchmarks.apps.size import DONORS, PAGE_CLUSTER
from benchmarks.apps.stage import Stage, Worker
from benchmarks.apps.talk import Talk
from benchmarks.load import BenchmarkError
from tests.vm.harness.program import HarnessError

LEVEL_PCT = 75
AFTER = 5  # windows from the event on: 20 s, in which a silent donor is given up after 5
DRAINED = (1, 2, 3)  # donors that recall all they lent, one after another, and lend again
SEED = 1
_ADMIN = "farside admin {command} --socket /root/plane/{name}.sock"


class _Scene:
    """The guests with everything running."""

    def __init__(self, stage: Stage, worker: Worker, here: Meter, there: Meter) -> None:
        self.stage = stage
        self._worker, self._here, self._there = worker, here, there

    def windows(self, count: int) -> tuple[Window, ...]:
        return tuple(run(self._worker, self._here, self._there, WINDOW_S) for _ in range(count))

    def settle(self) -> None:
        run(self._worker, self._here, self._there, SETTLE_S)

    def status(self) -> Any:
        """What the borrower tells."""
        said = self.stage.borrower.run(_ADMIN.format(command="status", name="blockdev"), limit_s=120)
        return json.loads(said)


def upsets(stage: Stage) -> Upsets:
    """All events; with those that were measured, and the reason, where it broke off."""
    events: dict[str, tuple[Upset, ...]] = {}
    date, trouble = now(), ""
    stage.borrower.run(f"swapoff -a; echo {PAGE_CLUSTER} >/proc/sys/vm/page-cluster")
    try:
        farside(stage.borrower, stage.donor, "borrow {} {} {} tcp", donors=DONORS)
        with (
            closing(Worker(stage.borrower, Workload.ORDERS)) as worker,
            closing(Meter(stage.borrower)) as here,
            closing(Meter(stage.donor)) as there,
        ):
            scene = _Scene(stage, worker, here, there)
            scene.windows(WINDOWS)
            throttle(stage.borrower, is_on=True)
            worker.limit(worker.memory_bytes() * LEVEL_PCT // 100)
            scene.settle()
            events["evictions"] = (_evictions(scene),)
            rng = random.Random(SEED)
            silent: list[str] = []
            for _ in range(WINDOWS):
                left = sorted(set(_held(scene)) - set(silent))
                silent.append(rng.choice(left))
                events["silent"] = (*events.get("silent", ()), _silence(scene, silent[-1]))
            held = _held(scene)
            busiest = max(held, key=lambda name: held[name])
            events["busiest"] = (_silence(scene, busiest),)
    except (BenchmarkError, HarnessError) as error:
        trouble = str(error).splitlines()[0]
    return Upsets(date=date, events=events, trouble=trouble)


def _held(scene: _Scene) -> dict[str, float]:
    """Page I/O a second of what each donor that answers holds."""
    told = scene.status()
    activity = {donor["node"]: 0.0 for donor in told["donors"] if donor["state"] == "up"}
    for slab in told["slabs"]:
        if slab["donor"] in activity:
            activity[slab["donor"]] += slab["activity"]
    return activity


def _silence(scene: _Scene, name: str) -> Upset:
    scene.settle()
    before = scene.windows(WINDOWS)
    pids = scene.stage.donor.run(f"pgrep -f 'farside daemon --config /root/plane/{name}.toml'").split()
    scene.stage.donor.run(f"kill -STOP {' '.join(pids)}")
    after = scene.windows(AFTER)
    scene.stage.donor.run(f"kill -KILL {' '.join(pids)}")
    return Upset(before=before, after=after)


def _evictions(scene: _Scene) -> Upset:
    before = scene.windows(WINDOWS)
    counted = _recalled(scene)
    drains = "; ".join(
        f"{_ADMIN.format(command='drain', name=f'd{n}')} deadline_s=1 && sleep 2 && "
        + _ADMIN.format(command="undrain", name=f"d{n}")
        for n in DRAINED
    )
    # In one command that runs meanwhile: a window does not wait for it.
    with closing(Talk(scene.stage.donor, f"({drains}) >/dev/null 2>/root/drain.err; echo done")) as talk:
        after = scene.windows(AFTER)
        talk.hear()
    return Upset(before=before, after=after, recalled_slabs=_recalled(scene) - counted)


def _recalled(scene: _Scene) -> int:
    """Slabs that donors have had back so far."""
    total = 0
    for n in range(DONORS):
        said = scene.stage.donor.run(_ADMIN.format(command="status", name=f"d{n + 1}"), limit_s=120)
        counters = json.loads(said)["counters"]
        total += counters["migrations"] + counters["evictions"]
    return total
