"""The simulated cluster: deterministic, and sane in what the paper says of it."""

import json
import random
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks import headroom_trace, reproduce
from benchmarks.cluster_device import Layout
from benchmarks.cluster_figure import containers, skew
from benchmarks.cluster_load import CONFIGURATIONS, GIB, ContainerLoad, SkewedLoad
from benchmarks.cluster_memory import PLACEMENTS, ClusterParams, ClusterResult, balance
from benchmarks.eviction_curve import computed_success, played_success

SHORT = ClusterParams(run_s=120, measured_from_s=60)


def short_run(seed: int = 1, *, placement: str = "power of two", layout: Layout = Layout.PACKED) -> ClusterResult:
    params = ClusterParams(run_s=120, measured_from_s=60, placement=placement, layout=layout, device_bytes=12 * GIB)
    return containers(32, params, seed)


@pytest.mark.long
def test_the_same_seed_gives_the_same_cluster() -> None:
    assert short_run(7) == short_run(7)
    assert short_run(7) != short_run(8)


@pytest.mark.parametrize("layout", list(Layout))
def test_a_cluster_that_lends_uses_more_of_its_memory_more_evenly(layout: Layout) -> None:
    result = short_run(layout=layout)

    assert result.leased.mean > result.without.mean
    assert result.leased.most_to_median <= result.without.most_to_median
    assert result.leased.most_to_least < result.without.most_to_least
    assert result.live_mean <= result.leased.mean


def test_lending_stays_below_headroom_where_it_can() -> None:
    result = short_run(placement="global view")

    assert result.recalls == 0
    assert result.fullest_lender < 1 - 1 / 8


@pytest.mark.long
def test_power_of_two_is_between_random_and_a_global_view() -> None:
    deviation = {
        name: fmean(short_run(seed, placement=name).leased.deviation for seed in (1, 2, 3)) for name in PLACEMENTS
    }

    assert deviation["global view"] <= deviation["power of two"] <= deviation["random"]


def test_the_containers_are_those_of_the_paper() -> None:
    load = ContainerLoad(machines=32, total_gib=64, run_s=100, rng=random.Random(1))

    shares = [container.memory_share for container in load.containers]
    assert len(shares) == 90
    for share, part in CONFIGURATIONS:
        assert shares.count(share) == round(part * 90)
    assert all(now.local_bytes <= 64 * GIB for now in load.at(100.0))
    assert sum(now.paged_bytes for now in load.at(0.0)) == 0


def test_the_skewed_machines_have_the_asked_imbalance() -> None:
    load = SkewedLoad(machines=1000, total_gib=64, p99_to_median=2.4, rng=random.Random(1))

    used = sorted(now.local_bytes for now in load.at(0.0))

    assert used[990] / used[500] == pytest.approx(2.4, rel=0.1)


def test_recalls_happen_where_use_drifts_and_no_page_is_counted_twice() -> None:
    result = skew(60, 2.4, ClusterParams(run_s=120, measured_from_s=60, placement="random"), 1)

    assert result.recalls > 0
    assert 0 <= result.moved_share <= 1
    assert 0.9 < result.remote_share <= 1


def test_a_balance_of_equal_machines_is_even() -> None:
    assert balance([0.5, 0.5, 0.5]).most_to_median == 1


@pytest.mark.parametrize(("extra", "busy"), [(0, 0.1), (5, 0.3), (10, 0.5)])
def test_played_evictions_agree_with_the_formula(extra: int, busy: float) -> None:
    played = played_success(count=10, extra=extra, busy=busy, trials=600, rng=random.Random(1))

    assert played == pytest.approx(computed_success(10, extra, busy), abs=0.08)


def test_a_donor_retreats_and_stops_when_its_programs_pause() -> None:
    seconds = tuple(headroom_trace.trace(GIB))

    assert min(s.free_bytes for s in seconds) > 0
    assert sum(s.recalled for s in seconds) >= 8
    assert sum(s.recalled for s in seconds if 150 <= s.now_s < 180) == 0


def test_reproduce_prints_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["--quick", "headroom-trace"]) == 0

    assert "infiniswap Figure 2.17" in capsys.readouterr().out


def test_a_figure_that_is_made_again_takes_its_place_in_the_file_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    for key in ("headroom-trace", "two-dimensional", "headroom-trace"):
        assert reproduce.main(["--quick", key, "--json", str(file)]) == 0

    found = json.loads(file.read_bytes())["figures"]

    assert [figure["key"] for figure in found] == ["headroom-trace", "two-dimensional"]
    assert all(figure["tables"] for figure in found)
    assert all(figure["command"] and figure["machine"] for figure in found)
