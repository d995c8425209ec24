"""What `farside submit` makes of a job file, a command and its options."""

from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.job_file import job_body, passed_on


def test_a_job_file_is_read_in_the_units_that_people_write(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = ["python", "t.py"]\ntime_limit = "2h"\nmemory_per_gpu = "16GiB"\ngrace = "90s"\n')

    body = job_body([str(file)], {}, "/home/ann", {"A": "1"})

    assert body == {
        "argv": ["python", "t.py"], "time_limit_s": 7200, "memory_bytes_per_gpu": 16 << 30, "grace_s": 90,
        "cwd": "/home/ann", "env": {"A": "1"},
    }  # fmt: skip


def test_an_option_goes_before_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = ["true"]\ngpus = 4\n')

    assert job_body([str(file)], {"gpus": 8}, "/", {})["gpus"] == 8


def test_a_job_does_not_get_what_belongs_to_a_terminal() -> None:
    environment = {"PATH": "/bin", "TERM": "xterm", "SSH_TTY": "1", "PWD": "/", "FARSIDE_TOKEN": "secret", "A-B": "1"}

    assert passed_on(environment) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus = 4\n", "nothing to run"),
        ('command = "true"\n', "must be a list of words"),
        ("command = [\n", "mend the TOML"),
        ('command = ["true"]\ntime_limit = "soon"\n', "time_limit: "),
    ],
)
def test_a_wrong_job_file_is_one_clear_line(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=says) as caught:
        job_body([str(file)], {}, "/", {})

    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_job_file_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"no/such\.toml: No such file"):
        job_body(["/no/such.toml"], {}, "/", {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('command = ["true"]\nenv = { A = 2020-01-01 }\n', "env.A: 2020-01-01 is a date or time"),
        ('command = ["true"]\nmodel = 2020-01-01T10:00:00\n', "model: 2020-01-01 10:00:00 is a date or time"),
        ('[[role]]\nname = "a"\ncommand = ["true", 10:00:00]\n', "role.command: 10:00:00 is a date or time"),
        ('command = ["true"]\nenv = ' + "[" * 5000 + "\n", "brackets within brackets"),
    ],
    ids=["date", "datetime", "time", "deep"],
)
def test_toml_that_json_has_no_words_for_is_one_clear_line(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=says) as caught:
        job_body([str(file)], {}, "/", {})

    assert str(caught.value).startswith(str(file))
