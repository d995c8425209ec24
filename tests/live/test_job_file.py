"""What `farside submit` makes of a job file, a command and its options."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from farside.cli.job_file import WantedJob, job_keys, passed_on, read_job, role_keys
from farside.errors import ConfigError
from farside.scheduler.manager.model.role import Role
from farside.scheduler.manager.model.spec import JobSpec


def test_a_job_file_is_read_in_the_units_that_people_write(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = ["python", "t.py"]\ntime_limit = "2h"\nmemory_per_gpu = "16GiB"\ngrace = "90s"\n')

    body = read_job([str(file)], {}, "/home/ann", {"A": "1"}).body

    assert body == {
        "argv": ["python", "t.py"], "time_limit_s": 7200, "memory_bytes_per_gpu": 16 << 30, "grace_s": 90,
        "cwd": "/home/ann", "env": {"A": "1"},
    }  # fmt: skip


def test_an_option_goes_before_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = ["true"]\ngpus = 4\n')

    assert read_job([str(file)], {"gpus": 8}, "/", {}).body["gpus"] == 8


def test_a_job_does_not_get_what_belongs_to_a_terminal() -> None:
    environment = {"PATH": "/bin", "TERM": "xterm", "SSH_TTY": "1", "PWD": "/", "FARSIDE_TOKEN": "secret", "A-B": "1"}

    assert passed_on(environment) == {"PATH": "/bin"}


@pytest.mark.parametrize("colocate", [False, True])
def test_a_co_located_job_does_not_get_numbers_of_threads_of_a_shell(colocate: bool) -> None:
    environment = {"PATH": "/bin", "OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "8"}

    env = read_job(["true"], {"colocate": colocate}, "/", environment).body["env"]
    told = read_job(["true"], {"colocate": colocate, "env.OMP_NUM_THREADS": "2"}, "/", environment)

    assert env == ({"PATH": "/bin"} if colocate else environment)
    assert "OMP_NUM_THREADS" in told.body["env"]  # type: ignore[operator] # for the manager to refuse
    refusal = "env.OMP_NUM_THREADS: is set by a co-located job's key threads; write that instead"
    assert told.in_own_words(refusal) == f"--set {refusal}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus = 4\n", "nothing to run"),
        ('command = "true"\n', "must be a list of words"),
        ("command = [\n", "fix the TOML"),
        ('command = ["true"]\ntime_limit = "soon"\n', "time_limit: "),
    ],
)
def test_a_wrong_job_file_is_one_clear_line(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=says) as caught:
        read_job([str(file)], {}, "/", {})

    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_job_file_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"no/such\.toml: No such file"):
        read_job(["/no/such.toml"], {}, "/", {})


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
        read_job([str(file)], {}, "/", {})

    assert str(caught.value).startswith(str(file))


def job_of(tmp_path: Path, text: str, settings: Mapping[str, object] | None = None) -> WantedJob:
    (tmp_path / "job.toml").write_text(f'command = ["true"]\n{text}\n')
    return read_job([str(tmp_path / "job.toml")], settings or {}, "/", {})


def test_an_option_goes_before_the_file_and_the_setting_however_each_calls_it(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('command = ["true"]\ntime_limit = "1h"\nmemory_per_gpu = "1GiB"\n')
    settings = {"memory_bytes_per_gpu": 777, "time_limit": "1min"}

    options = {"time_limit_s": ("--time", 5)}
    body = read_job([str(tmp_path / "job.toml")], settings, "/", {}, options=options).body

    assert (body["time_limit_s"], body["memory_bytes_per_gpu"]) == (5, 777)


def test_a_key_told_twice_in_one_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"time_limit_s: is the same as .*time_limit; keep one of them"):
        job_of(tmp_path, 'time_limit = "1h"\ntime_limit_s = 5')


def test_a_variable_is_added_to_those_of_the_file_or_of_who_submits(tmp_path: Path) -> None:
    assert job_of(tmp_path, 'env = { A = "1" }', {"env.B": "2"}).body["env"] == {"A": "1", "B": "2"}
    assert read_job(["true"], {"env.B": "2"}, "/", {"C": "3"}).body["env"] == {"B": "2", "C": "3"}


def test_a_word_that_ends_in_toml_is_a_command_where_that_is_said() -> None:
    assert read_job(["./x.toml"], {}, "/", {}, is_file=False).body["argv"] == ["./x.toml"]


@pytest.mark.parametrize(
    ("text", "refusal", "says"),
    [
        (
            'memory_per_gpu = "500GiB"',
            "cpus_per_gpu, memory_bytes_per_gpu: no node has that much for a single GPU",
            "FILE: memory_per_gpu: no node has that much for a single GPU",
        ),
        (
            "memory_bytes_per_gpu = 5\ncpus_per_gpu = 500",
            "gpus: it asks for 9; cpus_per_gpu, memory_bytes_per_gpu: no node has that much for a single GPU",
            "gpus: it asks for 9; FILE: cpus_per_gpu, memory_bytes_per_gpu: no node has that much for a single GPU",
        ),
        ("", "argv: is empty; name the program to run", "FILE: command: is empty; name the program to run"),
        ("gpu = 3", "gpu: no such key", "FILE: gpu: no such key; did you mean 'gpus'?"),
        (
            '[[role]]\nname = "ps"\ncont = 2',
            "roles.0.cont: no such key",
            "FILE: role ps: cont: no such key; did you mean 'count'?",
        ),
        ('[[role]]\nname = "ps"', "role ps: argv: is empty; name it", "FILE: role ps: command: is empty; name it"),
        ("", "a text contains a zero byte: no", "a text contains a zero byte: no"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_file_and_the_keys_as_they_were_written(
    text: str, refusal: str, says: str, tmp_path: Path
) -> None:
    assert job_of(tmp_path, text).in_own_words(refusal) == says.replace("FILE", str(tmp_path / "job.toml"))


def test_a_refusal_names_the_option_that_was_given() -> None:
    job = read_job(["true"], {"gpu": 3}, "/", {}, options={"time_limit_s": ("--time", -5)})

    assert job.in_own_words("time_limit_s: must be 0 to 4e+09 seconds, is -5; 0 is none").startswith("--time: must be")
    assert job.in_own_words("gpu: no such key") == "--set gpu: no such key; did you mean 'gpus'?"


def test_a_job_file_has_every_key_of_the_manager_and_none_besides() -> None:
    assert set(job_keys().values()) == {*JobSpec.__struct_fields__, "count", "hold"}
    assert set(role_keys().values()) == {*Role.__struct_fields__, "service"} - {"is_service"}


def test_a_job_has_the_umask_of_who_submits_it_unless_it_names_one(tmp_path: Path) -> None:
    """[L4]"""
    (tmp_path / "job.toml").write_text("command = ['true']\numask = 0o027\n")

    assert read_job(["true"], {}, "/", {}, umask=0o077).body["umask"] == 0o077
    assert "umask" not in read_job(["true"], {}, "/", {}, umask=0o022).body
    assert read_job([str(tmp_path / "job.toml")], {}, "/", {}, umask=0o077).body["umask"] == 0o027
