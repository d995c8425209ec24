"""The digest of a run: equal for equal decisions, wherever it is made, and different for any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.result.digest import Digest
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.state import Action, Preempt, Promote, Start
from farside.scheduler.table import JobTable
from tests.support.traces import flat_cluster, trace

ROWS = [(float(3 * at % 40), 5.0 + 7 * at % 31, 1 + at % 5) for at in range(60)]


def digest_of(order: OrderPolicy, rows: list[tuple[float, float, int]]) -> str:
    jobs = trace(rows)
    digest = Digest(jobs)
    Simulation(flat_cluster(2, 8), Rules(order=order, placement=Consolidate()), jobs, observers=(digest,)).run()
    assert digest.actions >= len(rows)
    return digest.value


def test_other_rules_or_another_second_give_another_digest() -> None:
    longer = [(submit_s, duration_s + (at == 30), gpus) for at, (submit_s, duration_s, gpus) in enumerate(ROWS)]

    seen = {digest_of(Fifo(), ROWS), digest_of(Las(limits_gpu_s=(20.0,)), ROWS), digest_of(Fifo(), longer)}

    assert len(seen) == 3
    assert digest_of(Fifo(), ROWS) in seen


START = Start(row=0, allocation=((0, 1),), reason="free")


@pytest.mark.parametrize(
    ("action", "is_same"),
    [
        (Start(row=0, allocation=((0, 1),), reason="in other words"), True),
        (Start(row=0, allocation=((1, 1),), reason="free"), False),
        (Start(row=0, allocation=((0, 1),), reason="free", delay_s=1.0), False),
        (Start(row=0, allocation=((0, 1),), reason="free", host="b"), False),
        (Start(row=1, allocation=((0, 1),), reason="free"), False),
        (Preempt(row=0, winner=1, reason="free"), False),
        (Promote(row=0, reason="free"), False),
    ],
)
def test_what_was_decided_counts_and_how_it_was_put_does_not(action: Action, is_same: bool) -> None:
    nodes = flat_cluster(1, 8).virtual_clusters[0].nodes
    domain = Domain("", nodes, Rules(order=Fifo(), placement=CountOnly()), JobTable())
    jobs = trace([(0.0, 1.0, 1), (0.0, 1.0, 1)])
    one, other, later = Digest(jobs), Digest(jobs), Digest(jobs)

    one(5.0, domain, (START,))
    other(5.0, domain, (action,))
    later(6.0, domain, (START,))

    assert (one.value == other.value) == is_same
    assert one.value != later.value


def test_it_is_the_same_in_every_process() -> None:
    """Python orders sets of text differently in each, unless told otherwise."""
    here = Path(__file__)
    program = f"import runpy; it = runpy.run_path({str(here)!r}); print(it['digest_of'](*it['PLAIN']))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=here.parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert digests == {digest_of(*PLAIN) + "\n"}


PLAIN = (Las(limits_gpu_s=(20.0,)), ROWS)
