"""The demo's cluster scene: its jobs, its verdict, and a small one played for real."""

import io
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from farside.cli.demo import cluster_jobs
from farside.cli.demo.cluster import Round, Scene, play
from farside.cli.demo.cluster_jobs import demo_jobs
from farside.cli.demo.cluster_report import improvement, print_scene, scene_faults
from farside.cli.demo.show import Show
from farside.scheduler.manager.compare_simulation import Compared, Fidelity
from tests.support.waiting import until


def fidelity(*jobs: tuple[float, float], preemptions: int = 0) -> Fidelity:
    return Fidelity(
        jobs=tuple(
            Compared(job_id=str(at), gpus=1, jct_s=really, predicted_s=said) for at, (really, said) in enumerate(jobs)
        ),
        preemptions=preemptions,
        predicted_preemptions=preemptions,
    )


GOOD = Scene(
    rounds=(
        Round(policy="fifo", fidelity=fidelity((8.0, 8.0), (12.0, 14.0)), done=2),
        Round(policy="las", fidelity=fidelity((2.0, 2.0), (8.0, 8.0), preemptions=3), done=2),
    ),
    violations=(),
)


def test_the_jobs_are_thirty_that_fit_and_the_same_each_time() -> None:
    jobs = demo_jobs()

    assert len(jobs) == 30
    assert jobs == demo_jobs()
    assert jobs[0].job.submit_s == 0.0
    assert all(one.job.gpus <= 32 for one in jobs)
    assert all(cluster_jobs.MIN_S <= one.duration_s <= cluster_jobs.MAX_S for one in jobs)


def test_a_scene_in_which_all_ended_well_and_las_preempted_is_good() -> None:
    assert scene_faults(GOOD) == ()


def test_what_went_wrong_is_named() -> None:
    fifo, las = GOOD.rounds
    lost = replace(GOOD, rounds=(replace(fifo, done=1), replace(las, fidelity=fidelity((1.0, 1.0)), done=1)))

    assert scene_faults(lost) == ("1 jobs under fifo were not done", "nothing was preempted under las")
    assert scene_faults(replace(GOOD, violations=("entry 7: a GPU is given twice",)))[0].startswith("entry 7")


@pytest.mark.parametrize("said_s", [6.0, 0.5])
def test_a_simulator_that_is_far_off_is_a_fault(said_s: float) -> None:
    fifo, las = GOOD.rounds
    off = replace(GOOD, rounds=(fifo, replace(las, fidelity=fidelity((1.0, said_s), preemptions=3), done=1)))

    assert scene_faults(off) == (
        f"the simulated mean JCT under las is off by {100 * (said_s - 1):+.1f} % (25 at most)",
    )


def test_the_page_has_reality_and_simulation_and_the_paper_s_figure_beside_them() -> None:
    page = io.StringIO()

    print_scene(Console(file=page, width=100), GOOD)

    assert improvement(GOOD) == (2.0, 2.2)
    assert "las over fifo: 2.00 times better really, 2.20 times simulated, 10.0 % apart" in page.getvalue()
    assert "5.5 times on its testbed, 5.11 times simulated, 7.1 % apart" in page.getvalue()
    assert "…" not in page.getvalue()


@pytest.mark.parametrize("told", [False, True])
def test_a_job_of_the_demo_works_as_long_as_it_was_asked_and_resumes_with_what_is_left(
    told: bool, tmp_path: Path
) -> None:
    environment = {
        "PLACE": str(tmp_path), "FARSIDE_JOB": "7", "RANK": "0", "FARSIDE_READY": str(tmp_path / "ready"),
        "PATH": "/usr/bin:/bin", **({"FARSIDE_RESUME": "1"} if told else {}),
    }  # fmt: skip
    if told:
        (tmp_path / "7.0").write_text("1\n")
    job = ["/bin/sh", "-c", cluster_jobs.SCRIPT, "job", "600000" if told else "10"]

    subprocess.run(job, env=environment, check=True, timeout=60)

    assert (tmp_path / "ready").read_text() == "ready\n"


def test_a_job_of_the_demo_that_is_told_to_stop_keeps_its_place(tmp_path: Path) -> None:
    environment = {
        "PLACE": str(tmp_path), "FARSIDE_JOB": "7", "RANK": "0", "FARSIDE_READY": str(tmp_path / "ready"),
        "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    with subprocess.Popen(["/bin/sh", "-c", cluster_jobs.SCRIPT, "job", "600000"], env=environment) as job:
        until((tmp_path / "ready").exists, what="a job that works")
        job.terminate()
        assert job.wait(60) == 0

    assert 0 < int((tmp_path / "7.0").read_text()) <= 600_000


def test_a_small_scene_runs_for_real_and_its_log_is_sound() -> None:
    jobs = [replace(one, duration_s=one.duration_s / 8) for one in demo_jobs(5)]

    # Below pytest's own folder of a worker the paths of the agents' sockets would be too long.
    with tempfile.TemporaryDirectory() as folder, Show(Console(file=io.StringIO()), lambda: "") as show:
        scene = play(show, Path(folder), jobs)

    assert scene.violations == ()
    assert [(one.policy, one.done, len(one.fidelity.jobs)) for one in scene.rounds] == [("fifo", 5, 5), ("las", 5, 5)]
    for one in scene.rounds:
        assert all(job.jct_s > 0 and job.predicted_s > 0 for job in one.fidelity.jobs)
