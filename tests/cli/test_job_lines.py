"""What `farside show` prints of a job."""

from farside.cli.cluster_table import job_lines, job_table

JOB = {
    "id": "7", "name": "train", "user": "ann", "state": "queued", "reason": "waits for GPUs", "gpus": 2, "held_s": 0.0,
    "starts": 0, "preemptions": 0, "failures": 0, "exit_code": None, "tasks": [],
    "spec": {"argv": ["train.py"], "cwd": "/home/ann", "env": {"TOKEN": "hunter2"}},
}  # fmt: skip
SUBMITTED = {
    "seq": 3, "at_s": 1e9, "type": "JobSubmitted", "cause": "user ann", "generation": 0,
    "event": {"job_id": "7", "user": "ann", "spec": JOB["spec"], "key": ""},
}  # fmt: skip


def test_its_history_has_a_line_an_entry_without_its_users_environment() -> None:
    lines = list(job_lines(JOB, [SUBMITTED]))

    assert lines[-1].endswith("JobSubmitted  user ann  [user ann]")
    assert "hunter2" not in "\n".join(lines)


def test_what_a_job_with_roles_runs_is_told_of_each_and_a_count_of_one_is_once() -> None:
    roles = [{"name": "worker", "count": 4, "argv": ["w", "1"]}, {"name": "ps", "count": 1, "argv": ["s"]}]
    spec = {"argv": ["w", "1"], "cwd": "/", "roles": roles}

    lines = list(job_lines({**JOB, "spec": spec, "preemptions": 1, "failures": 3}, []))

    assert "  role      worker, 4: w 1" in lines
    assert "  role      ps, 1: s" in lines
    assert "  starts    0, preempted 1 time, failed 3 times" in lines


def test_the_time_of_a_job_that_runs_again_counts_from_its_latest_start() -> None:
    now_s = 1000.0
    job = {**JOB, "state": "running", "submit_s": 10.0, "start_s": 20.0, "started_s": 940.0, "end_s": None}
    job |= {"nodes": ["n1"]}

    (row,) = zip(*(column.cells for column in job_table([job], {}, now_s).columns), strict=True)

    assert "1 min" in row
