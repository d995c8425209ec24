"""Figure 3.7: three jobs on two GPUs, by hand and by the simulator."""

from dataclasses import replace

from benchmarks.figure import Figure, Table
from farside.scheduler.order.distribution import Distribution
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.sim.cluster import build_site
from farside.scheduler.sim.experiment import Experiment, Scene, make_experiments, run_experiment
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Job

JOBS = ((2, 2.0), (1, 8.0), (2, 6.0))  # GPUs and duration of jobs 1, 2, 3, which come at once
SERVICES = Distribution([4.0, 8.0, 12.0])
PAPER = {"SRSF": "9.3", "2D-LAS": "11.7", "2D-Gittins": "10"}


def figure() -> Figure:
    """The three schedules of the figure, and the one that its 10 belongs to."""
    scene = Scene(
        site=build_site(nodes=1, gpus_per_node=2),
        jobs=tuple(
            TraceJob(job=Job(job_id=str(at + 1), sequence=at, submit_s=0.0, gpus=gpus), duration_s=duration_s)
            for at, (gpus, duration_s) in enumerate(JOBS)
        ),
        labels=("",) * len(JOBS),
    )
    rows = []
    for label, experiment in _experiments().items():
        results = run_experiment(experiment, scene).results
        ends = [f"{end_s:g}" for end_s in results.end_s.tolist()]
        rows.append((label, *ends, f"{results.all.avg_jct_s:.2f}", PAPER.get(label, "-")))
    header = ("", "job 1 ends", "job 2", "job 3", "average", "paper")
    return Figure(
        key="two-dimensional",
        title="Three jobs of (GPUs, duration) (2, 2), (1, 8), (2, 6) on two GPUs",
        source="tiresias Figure 3.7, §3.3.2.2",
        tables=(Table(caption="In units of time", header=header, rows=tuple(rows)),),
        notes=(
            "2D-Gittins by its definition gives 9.33, not the printed 10: a job that has begun has an index of 1/7 or"
            " more, one that has not 1/8, so whoever starts keeps its GPUs, and the jobs run one after the other.",
            "The printed 10 is what discretized queues with limits at 4 and 8 GPU units make of it, where job 2 falls"
            " behind job 3 once.",
        ),
    )


def _experiments() -> dict[str, Experiment]:
    continuous = {"limits_gpu_s": "", "interval_s": "1"}
    srsf, las = (make_experiments((name,), settings)[0] for name, settings in (("srsf", {}), ("las", continuous)))
    gittins = make_experiments(("gittins",), {**continuous, "delta": "best", "is_learning": "false"})[0]
    queues = make_experiments(("gittins",), {"limits_gpu_s": "4,8", "is_learning": "false"})[0]
    return {
        "SRSF": srsf,
        "2D-LAS": las,
        "2D-Gittins": _knowing(gittins),
        "2D-Gittins in queues": _knowing(queues),
    }


def _knowing(experiment: Experiment) -> Experiment:
    assert isinstance(experiment.order, Gittins)
    return replace(experiment, order=replace(experiment.order, prior=SERVICES))
