"""What `farside show` prints of a job."""

from farside.cli.cluster_table import job_lines

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
