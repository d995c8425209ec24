"""`farside sandbox --set PROGRAM.NAME=VALUE`: a program of the sandbox is set otherwise."""

import tomllib
from pathlib import Path

import pytest

from farside.config import ManagerConfig, load_config
from farside.config.load import kinds
from farside.config.settings import settings_of
from farside.errors import ConfigError
from farside.sandbox.main import run
from farside.sandbox.program_settings import config_text, parse_settings

PROGRAMS = ("daemon", "blockdev", "manager", "agent")


def test_settings_stand_in_the_file_of_their_program_over_the_sandbox_s_own() -> None:
    given = parse_settings(["manager.policy=qssf", "manager.min_run_s=1min", "agent.task_memory=off"], PROGRAMS)

    found = tomllib.loads(config_text({"policy": "las", "node": "n1"}, given["manager"]))

    assert found == {"node": "n1", "policy": "qssf", "min_run_s": "1min"}
    assert given["agent"] == {"task_memory": '"off"'}


def test_tables_are_written_as_they_are_given(tmp_path: Path) -> None:
    given = parse_settings(['manager.qos=[{name = "urgent", priority = 10}]'], PROGRAMS)
    path = tmp_path / "manager.toml"
    path.write_text(config_text({"node": "m"}, given["manager"]))

    (qos,) = load_config(ManagerConfig, (path,)).qos

    assert (qos.name, qos.priority) == ("urgent", 10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy=qssf", "--set policy=qssf: is not PROGRAM.NAME=VALUE; such as --set manager.policy=qssf"),
        ("manager.policy", "--set manager.policy: is not PROGRAM.NAME=VALUE"),
        ("slurm.policy=las", "there is no program 'slurm'; this sandbox has agent, blockdev, daemon, manager"),
        ("aggregator.cores=1", "there is no program 'aggregator'; this sandbox has .*; add --aggregators 1"),
        ("manager.policies=las", "--set manager.policies: "),
        ("manager.min_run_s=soon", "--set manager.min_run_s: "),
        ("manager.listen=[]", "--set manager.listen: the sandbox sets this itself"),
        (
            'manager.policy="fifo"\nnode="x"',
            "--set manager.policy: is more than one value; give each setting by a --set",
        ),
        ('manager.policy="fifo"\n[table]', "--set manager.policy: is more than one value"),
        ("manager.policy=fifo\nnode=x", "--set manager.policy: "),
        ("blockdev.size_bytes=1GiB", "--set blockdev.size_bytes: the sandbox sets this itself; use --size"),
    ],
)
def test_what_can_t_be_set_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        parse_settings([text], PROGRAMS)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_setting_of_a_program_may_be_set_or_is_the_sandbox_s(program: str) -> None:
    plain = {
        name: str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
        for name, setting in settings_of(kinds()[program]).items()
        if isinstance(setting.default, bool | int | float | str)
    }

    answers = {name: why_not(f"{program}.{name}={value}") for name, value in plain.items()}

    assert {why.partition(": ")[2].partition(";")[0] for why in answers.values() if why} == {
        "the sandbox sets this itself"
    }


def why_not(text: str) -> str:
    """Why a setting is refused; empty: it is taken."""
    try:
        parse_settings([text], PROGRAMS)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_manager_s_setting_without_a_cluster_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no program 'manager'; .*; add --cluster, such as 1x1"):
        run(state=tmp_path / "s", program_settings=("manager.policy=qssf",))

    assert not (tmp_path / "s").exists()
