"""The cluster that a trace is run on, from options and files."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.scheduler.order.catalog import ORDERS
from farside.scheduler.placement.catalog import PLACEMENTS, make_placement
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.cluster import PLAIN, Site, SizeRange, VcSize, build_site, misfits
from farside.scheduler.sim.experiment import Scene, make_experiments, run_experiment
from farside.scheduler.sim.trace.read_nodes import read_vc_sizes
from farside.scheduler.state import Cluster, Node, VirtualCluster
from tests.support.traces import flat_cluster, trace

NAN_DAY_S = 1506816000.0  # 2017-10-01


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    return path


def test_nodes_alone_make_one_pool_and_with_a_name_its_virtual_cluster() -> None:
    (pool,) = build_site(gpus_per_node=8, nodes=3).cluster.virtual_clusters
    (named,) = build_site(gpus_per_node=8, nodes=3, vcs=("a",)).cluster.virtual_clusters

    assert (pool.name, pool.gpus, len(pool.nodes)) == ("", 24, 3)
    assert (named.name, named.gpus) == ("a", 24)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"gpus_per_node": 0, "nodes": 1}, "--gpus-per-node is 0"),
        ({"gpus_per_node": 8, "nodes": -1}, "--nodes is -1"),
        ({"gpus_per_node": 8}, "the number of nodes of the cluster is unknown"),
        ({"gpus_per_node": 1, "nodes": 10**8}, "100,000,000 nodes with 100,000,000 GPUs; give at most 1,000,000 nodes"),
        ({"gpus_per_node": 10**12, "nodes": 1}, "1 node with 1,000,000,000,000 GPUs"),
        ({"gpus_per_node": 8, "vc_sizes": (VcSize(vc="a", gpus=10**7), VcSize(vc="b", gpus=8))}, "1,250,001 nodes"),
        ({"gpus_per_node": 8, "nodes": 2, "vcs": ("a", "b")}, "several virtual clusters"),
        ({"gpus_per_node": 8, "nodes": 2, "vc_sizes": (VcSize(vc="a", gpus=8),)}, "exclude each other"),
        ({"gpus_per_node": 8, "vc_sizes": (VcSize(vc="2869ce", gpus=8),), "vcs": ("2869cf",)}, "mean '2869ce'"),
    ],
)
def test_what_makes_no_cluster_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build_site(**options)  # type: ignore[arg-type]


def test_sizes_by_time_become_resizes_of_the_largest() -> None:
    sizes = (
        VcSize(vc="a", gpus=16, from_s=0.0),
        VcSize(vc="a", gpus=12, from_s=100.0),
        VcSize(vc="a", gpus=12, from_s=200.0),
        VcSize(vc="a", gpus=20, from_s=300.0),
        VcSize(vc="b", gpus=8),
    )

    site = build_site(gpus_per_node=8, vc_sizes=sizes, start_s=50.0)

    assert site.size(50.0, 99.0) == SizeRange(nodes=3, gpus=24, least_gpus=24, most_gpus=24)
    assert site.size(60.0, 300.0) == SizeRange(nodes=3, gpus=24, least_gpus=20, most_gpus=28)
    assert [(vc.name, [node.gpus for node in vc.nodes]) for vc in site.cluster.virtual_clusters] == [
        ("a", [8, 8, 4]), ("b", [8]),
    ]  # fmt: skip
    assert [(one.at_s, one.vc, sum(node.gpus for node in one.nodes)) for one in site.resizes] == [
        (50.0, "a", 16), (100.0, "a", 12), (300.0, "a", 20),
    ]  # fmt: skip


def test_a_file_tells_nodes_as_phillys_does(tmp_path: Path) -> None:
    path = written(tmp_path, "vc,node num\n2869ce,16\n7F04CA,32\n")

    assert read_vc_sizes(path, 8) == (VcSize(vc="2869ce", gpus=128), VcSize(vc="7F04CA", gpus=256))


def test_a_file_tells_since_when(tmp_path: Path) -> None:
    path = written(tmp_path, "vc,nodes,from\na,2,\na,1,2017-10-01 00:00:00\n")

    assert [size.from_s for size in read_vc_sizes(path, 4)] == [float("-inf"), NAN_DAY_S]


def test_a_file_tells_gpus_by_day_as_helioss_does(tmp_path: Path) -> None:
    path = written(tmp_path, "date,vcA,vcB,total\n2017-10-01,16,0,16\n2017-10-02,8,8,16\n")

    assert [(size.vc, size.gpus, size.from_s - NAN_DAY_S) for size in read_vc_sizes(path, 8)] == [
        ("vcA", 16, 0.0), ("vcB", 0, 0.0), ("vcA", 8, 86400.0), ("vcB", 8, 86400.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("vc,nodes\na,many\n", "line 2, column nodes: 'many' is not a number"),
        ("vc,nodes\na,1\na,2\n", "'a' is listed twice"),
        ("vc,nodes\na\n", "line 2: 1 cells, the header has 2"),
        ("vc,nodes\n", "names no virtual cluster"),
        ("vc\na\n", "line 1: 1 columns"),
        ("date,a\nyesterday,8\n", "line 2, column date: 'yesterday'"),
        ('vc,nodes\n"a,1\n', "line 2: quotes"),
        ("", "is empty"),
    ],
)
def test_a_wrong_file_is_one_line_that_says_where(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_vc_sizes(written(tmp_path, text), 8)

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_jobs_that_never_fit_are_found_with_the_reason() -> None:
    jobs = trace([(0.0, 1.0, 8), (1.0, 1.0, 9), (2.0, 1.0, 4)])
    jobs[2] = replace(jobs[2], job=replace(jobs[2].job, vc="other"))

    found = misfits(jobs, flat_cluster(2, 4), CountOnly())

    assert [(job.job.job_id, reason) for job, reason in found] == [
        ("1", "needs 9 GPUs, its cluster has 8"),
        ("2", "the number of nodes of virtual cluster 'other' is unknown (other sizes known: 1)"),
    ]


def test_a_job_whose_nodes_lack_something_else_is_found_too() -> None:
    cluster = Cluster(virtual_clusters=(VirtualCluster(name="", nodes=(Node(name="n", gpus=8, cpus=16),)),))
    (job,) = trace([(0.0, 1.0, 4)])

    found = misfits([replace(job, job=replace(job.job, cpus_per_gpu=8.0))], cluster, Consolidate())

    assert [reason for _, reason in found] == [
        "no set of its cluster's nodes can hold it (4 GPUs with 8 CPUs each, placement consolidate)"
    ]


def test_a_model_that_nobody_says_the_nodes_have_is_told_as_such() -> None:
    (job,) = trace([(0.0, 1.0, 4)])
    wishing = [replace(job, job=replace(job.job, gpu_model="V100"))]

    unsaid, other, right = (
        misfits(
            wishing, build_site(gpus_per_node=4, nodes=1, like=replace(PLAIN, gpu_model=model)).cluster, Consolidate()
        )
        for model in ("", "T4", "v100")
    )

    assert [reason for _, reason in unsaid] == [
        "asks for GPUs of model V100, and the GPU models are unknown (--gpu-model)"
    ]
    assert "4 GPUs of model V100" in other[0][1]
    assert right == []


def test_nodes_have_the_cpus_the_memory_and_the_rack_that_are_said() -> None:
    like = replace(PLAIN, cpus=16, memory_bytes=2**30)
    sizes = (VcSize(vc="a", gpus=12), VcSize(vc="a", gpus=8, from_s=9.0))

    pool = build_site(gpus_per_node=4, nodes=3, like=like, nodes_per_rack=2).cluster.virtual_clusters[0].nodes
    own = build_site(gpus_per_node=4, vc_sizes=sizes, like=like, nodes_per_rack=2)

    assert [(node.name, node.rack, node.cpus) for node in pool] == [
        ("n0", "nr0", 16),
        ("n1", "nr0", 16),
        ("n2", "nr1", 16),
    ]
    assert [node.rack for node in own.cluster.virtual_clusters[0].nodes] == ["a-r0", "a-r0", "a-r1"]
    assert {(node.rack, node.memory_bytes) for node in own.resizes[0].nodes} == {("a-r0", 2**30)}


def test_nodes_that_come_and_go_keep_their_model() -> None:
    sizes = (VcSize(vc="a", gpus=8), VcSize(vc="a", gpus=4, from_s=100.0))

    site = build_site(gpus_per_node=4, vc_sizes=sizes, like=replace(PLAIN, gpu_model="T4"))

    assert {node.gpu_model for resize in site.resizes for node in resize.nodes} == {"T4"}


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_whoever_is_no_misfit_runs_to_its_end(placement: str) -> None:
    nodes = tuple(Node(name=f"n{at}", gpus=4, cpus=16, rack=f"r{at // 2}", gpu_model="vvt"[at]) for at in range(3))
    cluster = Cluster(virtual_clusters=(VirtualCluster(name="", nodes=nodes),))
    rows = trace((float(at), 10.0, gpus) for at, gpus in enumerate((1, 3, 4, 5, 6, 8, 9, 12, 13, 2, 4, 4)))
    wishes: list[dict[str, object]] = [{}] * 9 + [{"cpus_per_gpu": 20.0}, {"gpu_model": "t"}, {"gpu_model": "x"}]
    jobs = [replace(row, job=replace(row.job, **wish)) for row, wish in zip(rows, wishes, strict=True)]  # type: ignore[arg-type]

    never = {job.job.job_id for job, _ in misfits(jobs, cluster, make_placement(placement, {}))}
    kept = tuple(job for job in jobs if job.job.job_id not in never)
    (experiment,) = make_experiments(("best-effort",), {}, placement=placement)

    assert "8" in never  # 13 GPUs where 12 are
    assert run_experiment(experiment, Scene(site=Site(cluster=cluster), jobs=kept, labels=("",) * len(kept)))


@pytest.mark.parametrize("rows", [[(5.0, 0.0, 1)], [(5.0, 0.0, 1), (5.0, 0.0, 4)], [(0.0, 0.0, 4), (0.0, 3.0, 4)]])
def test_jobs_that_run_for_no_time_give_figures_nonetheless(rows: list[tuple[float, float, int]]) -> None:
    jobs = tuple(trace(rows))
    scene = Scene(site=build_site(gpus_per_node=4, nodes=1), jobs=jobs, labels=("",) * len(jobs))

    for experiment in make_experiments(tuple(ORDERS), {"cost": "helios"}):
        found = run_experiment(experiment, scene, is_keeping_segments=True)

        assert math.isfinite(found.results.all.avg_rho)
        assert math.isfinite(found.recording.utilisation)
        assert math.isfinite(found.recording.utilisation)
        assert math.isfinite(found.recording.fragmentation)
