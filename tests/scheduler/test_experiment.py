"""From an operator's names and settings to a run."""

import math
from dataclasses import replace

import pytest

from farside.errors import ConfigError
from farside.scheduler.order.las import Las
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.preemption_cost import SteppedCost
from farside.scheduler.sim.cluster import Site
from farside.scheduler.sim.experiment import Scene, Unfinished, make_experiments, run_experiment
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Resize
from tests.support.traces import flat_cluster, trace


def scene_of(jobs: list[TraceJob], *resizes: Resize) -> Scene:
    return Scene(
        site=Site(cluster=flat_cluster(2, 4), resizes=resizes),
        jobs=tuple(jobs),
        labels=tuple(job.job.vc for job in jobs),
    )


def test_each_setting_reaches_the_part_that_has_it() -> None:
    settings = {
        "limits_gpu_s": "1h,2h", "cost": "helios", "one_s": "5", "remainder_on_fullest": "yes", "min_run_s": "10min",
        "reserve_after_s": "24h", "tick_s": "60", "is_lending": "true", "in_whole_seconds": "false",
    }  # fmt: skip

    fifo, las = make_experiments(["fifo", "las"], settings)

    assert las.order == Las(limits_gpu_s=(3600.0, 7200.0))
    assert las.preemption_cost == SteppedCost(one_s=5.0)
    assert las.placement == Consolidate(remainder_on_fullest=True)
    assert (las.rules.min_run_s, las.rules.reserve_after_s) == (600.0, 86400.0)
    assert (las.options.tick_s, las.options.is_lending, las.options.in_whole_seconds) == (60.0, True, False)
    assert (fifo.preemption_cost, fifo.placement, fifo.options) == (las.preemption_cost, las.placement, las.options)


def test_what_names_the_part_goes_over_what_does_not() -> None:
    settings = {"limits_gpu_s": "1h", "gittins.limits_gpu_s": "2h"}

    las, gittins = make_experiments(["las", "gittins"], settings)

    assert isinstance(las.order, Las)
    assert isinstance(gittins.order, Las)
    assert (las.order.limits_gpu_s, gittins.order.limits_gpu_s) == ((3600.0,), (7200.0,))


def test_nothing_said_is_the_papers_rule() -> None:
    (one,) = make_experiments(["las"], {})

    assert one.rules.reserve_after_s == math.inf
    assert (one.preemption_cost.name, one.slowdown.name, one.placement.name) == ("free", "none", "consolidate")


@pytest.mark.parametrize("never", ["0", "never"])
def test_a_reservation_after_no_time_is_never_one(never: str) -> None:
    (one,) = make_experiments(["las"], {"reserve_after_s": never})

    assert one.rules.reserve_after_s == math.inf


def test_yarn_cs_brings_its_placement_unless_another_is_named() -> None:
    assert make_experiments(["yarn-cs"], {})[0].placement.name == "yarn"
    assert make_experiments(["yarn-cs"], {}, placement="count")[0].placement.name == "count"


@pytest.mark.parametrize(
    ("policy", "settings", "told"),
    [
        ("lass", {}, "no policy 'lass'; did you mean 'las'?"),
        ("las", {"limit_gpu_s": "1h"}, "--set limit_gpu_s: no part of this run has such a setting; did you mean"),
        ("las", {"fifo.is_strict": "no"}, "--set fifo.is_strict: no part"),
        ("fifo", {"limits_gpu_s": "1h"}, "--set limits_gpu_s: no part"),
        ("las", {"cost": "helioz"}, "no cost model 'helioz'; did you mean 'helios'?"),
        ("las", {"effect": "x"}, "no effect 'x'"),
        ("las", {"promote_knob": "often"}, "promote_knob"),
        ("las", {"min_run_s": "-5"}, "min_run_s: must be at least 0"),
        ("las", {"reserve_after_s": "1e-12"}, "reserve_after_s: must be at least 1 s, or 0 for never"),
        ("las", {"reserve_after_s": "0.9"}, "reserve_after_s: must be at least 1 s, or 0 for never"),
        ("timeshare", {"quantum_s": "1e-7"}, "quantum_s: must be at least 0.001 s"),
        ("las", {"limits_gpu_s": "", "interval_s": "0"}, "interval_s: must be at least 0.001 s"),
    ],
)
def test_a_mistake_is_told_with_the_nearest_right_name(policy: str, settings: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_experiments([policy], settings)

    assert told in str(caught.value)


def test_an_unknown_placement_is_told() -> None:
    with pytest.raises(ConfigError, match="no placement 'consolidated'; did you mean 'consolidate'"):
        make_experiments(["fifo"], {}, placement="consolidated")


def test_the_same_run_has_the_same_digest_and_another_policy_another() -> None:
    jobs = trace([(0.0, 50.0, 8), (1.0, 5.0, 4), (2.0, 7.0, 8), (3.0, 1.0, 1)])
    fifo, srtf = make_experiments(["fifo", "srtf"], {})

    digests = [run_experiment(one, scene_of(jobs)).digest for one in (fifo, fifo, srtf)]

    assert digests[0] == digests[1] != digests[2]


def test_settings_told_are_those_that_make_the_same_again() -> None:
    (one,) = make_experiments(["las"], {"limits_gpu_s": "1h", "cost": "helios", "promote_knob": "8"})

    told = one.settings()

    assert told["policy"]["limits_gpu_s"] == (3600.0,)
    assert told["options"]["cost"] == told["cost"]["name"] == "helios"


def test_jobs_that_never_end_are_an_error_and_not_a_figure() -> None:
    jobs = [replace(job, line=at + 2) for at, job in enumerate(trace([(0.0, 5.0, 4), (20.0, 5.0, 8)]))]
    shrunk = Resize(at_s=10.0, vc="", nodes=flat_cluster(1, 4).virtual_clusters[0].nodes)
    (fifo,) = make_experiments(["fifo"], {})

    with pytest.raises(Unfinished, match="fifo: 1 of 2 jobs never ended, the first is that of line 3, job 1"):
        run_experiment(fifo, scene_of(jobs, shrunk))


def test_progress_is_told_from_time_to_time() -> None:
    told: list[float] = []
    jobs = trace((2.0 * at, 1.0, 1) for at in range(1500))

    run_experiment(make_experiments(["fifo"], {})[0], scene_of(jobs), tell=told.append)

    assert told == sorted(told)
    assert len(told) == 1500 * 2 // 512
    assert 0.0 < told[0] < told[-1] <= 1.0
