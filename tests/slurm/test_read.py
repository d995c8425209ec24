"""What Slurm prints. The texts in tests/slurm/data are those of a real slurmctld 22.05, all of one moment."""

import contextlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.config.hostlist import expand
from farside.scheduler.slurm import read_json, read_text
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob
from farside.scheduler.slurm.tres import gpus_asked, gpus_of, held_by_node, memory_bytes_of, model_of

DATA = Path(__file__).parent / "data"


def lines() -> dict[str, SlurmJob]:
    return {job.job_id: job for job in read_text.jobs_of((DATA / "jobs.txt").read_text())}


def as_json() -> dict[str, SlurmJob]:
    return {job.job_id: job for job in read_json.jobs_of((DATA / "jobs.json").read_text())}


def comparable(job: SlurmJob) -> SlurmJob:
    """With a number for what is not there, and no reason: lines have underscores in it."""
    eligible_s, start_s, end_s = (
        -1.0 if math.isnan(at_s) else at_s for at_s in (job.eligible_s, job.start_s, job.end_s)
    )  # fmt: skip
    return replace(job, reason="", eligible_s=eligible_s, start_s=start_s, end_s=end_s)


def test_lines_and_json_tell_the_same() -> None:
    one, other = lines(), as_json()
    doubtful = "21"

    assert one.keys() == other.keys()
    assert [comparable(one[name]) for name in one if name != doubtful] == [
        comparable(other[name]) for name in one if name != doubtful
    ]


def renamed(name: str) -> str:
    """All jobs, of which job 12 has this name."""
    return (DATA / "jobs.txt").read_text().replace("JobId=12 JobName=alpha", f"JobId=12 JobName={name}")


@pytest.mark.parametrize("name", ["a\vb", "a\fb", "a\x1cb", "a\x85b", "a\u2028b"])
def test_what_python_calls_a_line_break_in_a_name_is_a_part_of_it(name: str) -> None:
    """[M7] A job of such a name stopped all turns of the engine."""
    found = {job.job_id: job for job in read_text.jobs_of(renamed(name))}

    assert found == {**lines(), "12": replace(lines()["12"], name=name)}


def test_a_line_break_in_a_name_costs_its_own_job_only() -> None:
    """[M7]"""
    found = {job.job_id: job for job in read_text.jobs_of(renamed("a\nb"))}

    assert found == {job_id: job for job_id, job in lines().items() if job_id != "12"}


def test_a_job_in_another_jobs_name_is_not_acted_upon() -> None:
    """[M7] The fields of a job in the name of another one took its place."""
    other = next(line for line in (DATA / "jobs.txt").read_text().split("\n") if line.startswith("JobId=16 "))
    liar = "x\n" + other.replace("Priority=", "Priority=9", 1)

    found = {job.job_id: job for job in read_text.jobs_of(renamed(liar))}

    assert lines()["16"].partitions
    assert found["16"].partitions == ()


def test_an_answer_of_which_no_line_can_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="JobState"):
        read_text.jobs_of("JobId=1 JobName=a\nJobId=2 JobName=b\n")


def test_phases_and_what_is_held() -> None:
    jobs = as_json()

    assert (jobs["12"].phase, jobs["12"].held) == (JobPhase.RUNNING, (("gn1", 4),))
    assert (jobs["13"].phase, jobs["13"].held) == (JobPhase.STUCK, (("gn2", 2),))
    assert (jobs["16"].phase, jobs["16"].gpus) == (JobPhase.WAITING, 8)
    assert jobs["19"].phase is JobPhase.OVER


@pytest.mark.parametrize("job_id", ["14", "16", "20", "21", "22"])
def test_a_job_that_waits_for_its_turn_is_ready(job_id: str) -> None:
    assert as_json()[job_id].is_ready


@pytest.mark.parametrize(
    ("job_id", "why"), [("15", "its array's limit"), ("17", "a dependency"), ("18", "a user's hold")]
)
def test_a_job_that_waits_for_something_else_is_not_ready(job_id: str, why: str) -> None:
    assert not as_json()[job_id].is_ready, why


def test_only_a_hold_with_our_mark_is_ours() -> None:
    jobs = as_json()

    assert jobs["14"].is_held_by_us
    assert not jobs["18"].is_held_by_us
    assert not replace(jobs["14"], admin_comment="somebody else's").is_ready


def test_waiting_tasks_of_an_array_are_one_job_and_running_ones_each_another() -> None:
    jobs = as_json()

    assert jobs["15"].is_array
    assert (jobs["23"].is_array, jobs["24"].is_array) == (False, False)


def test_a_job_that_names_its_node_is_bound() -> None:
    assert as_json()["20"].is_bound
    assert not as_json()["16"].is_bound


def test_a_job_whose_name_looks_like_other_fields_is_of_no_partition() -> None:
    job = lines()["21"]

    assert job.name.startswith("evil")
    assert job.partitions == ()
    assert as_json()["21"].partitions == ("gpu", "other")


def test_nodes_partitions_and_traits() -> None:
    nodes = read_text.nodes_of((DATA / "nodes.txt").read_text())
    partitions = read_text.partitions_of((DATA / "partitions.txt").read_text())
    traits = read_text.traits_of((DATA / "config.txt").read_text())

    assert (nodes["gn1"].gpus, nodes["gn1"].gpus_used, nodes["gn1"].gpu_model) == (4, 4, "h100")
    assert nodes["gn1"].is_taking
    assert not nodes["gn2"].is_taking
    assert partitions["gpu"] == ("gn1", "gn2")
    assert (traits.version, traits.is_counting_memory, traits.has_power_saving) == ("22.05.8", True, True)


def test_no_suspend_program_is_no_power_saving() -> None:
    assert not read_text.traits_of("SuspendProgram = (null)\nSelectTypeParameters = CR_CORE\n").has_power_saving


def test_json_of_later_versions_is_read_alike() -> None:
    told = json.loads((DATA / "jobs.json").read_text())
    numbers = ("submit_time", "eligible_time", "start_time", "end_time", "time_limit", "node_count", "tasks", "cpus")
    for job in told["jobs"]:
        for name in (*numbers, "priority"):
            job[name] = {"set": job[name] is not None, "infinite": False, "number": job[name] or 0}
        job["job_state"] = [job["job_state"]]

    later = {job.job_id: job for job in read_json.jobs_of(json.dumps(told))}

    assert {name: comparable(job) for name, job in later.items()} == {
        name: comparable(job) for name, job in as_json().items()
    }


def test_a_job_that_completes_still_holds() -> None:
    told = json.loads((DATA / "jobs.json").read_text())["jobs"][0] | {"job_state": ["COMPLETED", "COMPLETING"]}

    job = read_json.jobs_of(json.dumps({"jobs": [told]}))[0]

    assert (job.phase, job.held) == (JobPhase.STUCK, (("gn1", 4),))


@pytest.mark.parametrize("text", ["", "squeue: error", "[]", '{"jobs": [{"job_id": "x"}]}', '{"jobs": 3}'])
def test_what_is_no_json_of_squeue_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="squeue --json"):
        read_json.jobs_of(text)


@given(text=st.text(max_size=200) | st.from_regex(r"(JobId|NodeName|PartitionName)=[ -~]{0,200}", fullmatch=True))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_text.jobs_of, read_text.nodes_of, read_text.partitions_of, read_json.jobs_of):
        with contextlib.suppress(ValueError):
            read(text)


@pytest.mark.parametrize(
    ("text", "gpus", "model"),
    [
        ("gres:gpu:4", 4, ""),
        ("gres:gpu:h100:2", 2, "h100"),
        ("gres/gpu:H100:2", 2, "h100"),
        ("gres/gpu=8", 8, ""),
        ("cpu=4,mem=10G,gres/gpu=4,gres/gpu:a100=4", 4, "a100"),
        ("gres/gpu:a100=2,gres/gpu:v100=3", 5, ""),
        ("gpu:h100:4(IDX:0-3)", 4, "h100"),
        ("gpu:h100:4(S:0-1),mps:400", 4, "h100"),
        ("gpu:2(IDX:0,2)", 2, ""),
        ("gres:gpu", 1, ""),
        ("gres:mps:100", 0, ""),
        ("", 0, ""),
    ],
)
def test_gpus_in_slurms_texts(text: str, gpus: int, model: str) -> None:
    assert (gpus_of(text), model_of(text)) == (gpus, model)


def test_gpus_asked_by_job_node_or_task() -> None:
    nothing = {"job": "", "node": "", "task": "", "tres": ""}

    assert gpus_asked(**{**nothing, "job": "gres:gpu:3"}, nodes=2, tasks=4) == (3, "")
    assert gpus_asked(**{**nothing, "node": "gres:gpu:h100:3"}, nodes=2, tasks=4) == (6, "h100")
    assert gpus_asked(**{**nothing, "task": "gres:gpu:1"}, nodes=2, tasks=4) == (4, "")
    assert gpus_asked(**{**nothing, "tres": "cpu=1,gres/gpu=5"}, nodes=2, tasks=4) == (5, "")


def test_without_details_all_nodes_of_a_job_hold_alike() -> None:
    assert held_by_node("gn[1-2]", [], 5) == (("gn1", 3), ("gn2", 2))
    assert held_by_node("gn[1-2]", ["gpu:1(IDX:0)", "gpu:4(IDX:0-3)"], 5) == (("gn1", 1), ("gn2", 4))
    assert held_by_node("", [], 5) == ()


def test_memory_has_its_unit() -> None:
    assert memory_bytes_of("cpu=1,mem=10M,node=1") == 10 * 2**20
    assert memory_bytes_of("cpu=1,mem=1.5T") == 1.5 * 2**40
    assert memory_bytes_of("cpu=1") == 0


def test_lists_of_nodes() -> None:
    assert expand("") == ()
    assert expand("login") == ("login",)
    assert expand("gn[1-3,7],login,r[1-2]n[08-10]") == (
        "gn1", "gn2", "gn3", "gn7", "login",
        "r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["gn[1-", "gn[a-b]", "gn[3-1]", "gn[1-9999999]", "gn[0-999]x[0-999]", "gn]1["])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'"):
        expand(text)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=20, unique=True))
def test_a_list_has_just_its_numbers(numbers: list[int]) -> None:
    text = f"n[{','.join(map(str, numbers))}]"

    assert expand(text) == tuple(f"n{number}" for number in numbers)
