"""A setting that was renamed: its old name is accepted with a warning, both names at once are refused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from farside.blockdev.params import decode_config
from farside.cli.app import app
from farside.config import load, load_config
from farside.config.load import ConfigProblems, effective_config
from farside.config.renamed import with_current_names
from farside.config.settings import count, seconds, settings_of, tables
from farside.config.shared import LogSettings, NodeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    weight: int = count(1, 0, 9, "Weight of this one", was="mass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(NodeSettings, LogSettings):
    wait_s: float = seconds(1.0, 0, 60, "Time to wait", was="delay_s")
    row: tuple[Row, ...] = tables(Row, "[[row]] tables")


KIND: Any = Example  # load_config's type variable lists the programs that there are


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_problems(config: Example) -> Iterator[tuple[str, str]]:
        return iter(())

    monkeypatch.setattr(load, "_PROGRAMS", {Example: ("daemon", no_problems)})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "daemon.toml"


def problems(*paths: Path) -> tuple[str, ...]:
    with pytest.raises(ConfigProblems) as caught:
        load_config(KIND, paths)
    return caught.value.problems


def test_the_old_name_sets_the_setting_under_its_new_name(file: Path) -> None:
    file.write_text('delay_s = "3s"\n[[row]]\nmass = 7\n')

    loaded = effective_config(KIND, [file])

    assert (loaded.config.wait_s, loaded.config.row) == (3.0, (Row(weight=7),))
    assert loaded.sources["wait_s"] == str(file)


def test_the_old_name_is_one_line_of_the_log(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text("delay_s = 3\n[[row]]\nmass = 7\n")

    load_config(KIND, [file])

    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("config: ")[2] for line in lines] == [
        f"{file}: delay_s: is now 'wait_s'; rename it",
        f"{file}: row: table 1: 'mass' is now 'weight'; rename it",
    ]
    assert all(" warning " in line for line in lines)


def test_the_old_name_on_the_command_line_is_reported_too() -> None:
    assert effective_config(KIND, [Path("/dev/null")], {"delay_s": 2}).warnings == (
        "command line: delay_s: is now 'wait_s'; rename it",
    )


def test_the_new_name_is_reported_by_nobody(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text("wait_s = 3\n")

    assert load_config(KIND, [file]).wait_s == 3.0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("first", "second"), [("delay_s", "wait_s"), ("wait_s", "delay_s")])
def test_both_names_in_one_file_are_refused_in_one_line(file: Path, first: str, second: str) -> None:
    file.write_text(f"{first} = 1\n{second} = 2\n")

    assert problems(file) == (
        f"{file}: {second}: is the same setting as '{first}' in {file}; remove 'delay_s', its old name",
    )


def test_both_names_in_a_file_and_a_drop_in_are_refused_in_one_line(file: Path) -> None:
    file.write_text("delay_s = 1\n")
    drop_in = file.parent / "daemon.d" / "site.toml"
    drop_in.parent.mkdir()
    drop_in.write_text("wait_s = 2\n")

    assert problems(file) == (
        f"{drop_in}: wait_s: is the same setting as 'delay_s' in {file}; remove 'delay_s', its old name",
    )


def test_both_names_in_one_table_are_refused_in_one_line(file: Path) -> None:
    file.write_text("[[row]]\nmass = 1\nweight = 2\n")

    assert problems(file) == (
        f"{file}: row: table 1: 'weight': is the same setting as 'mass' in row; remove 'mass', its old name",
    )


def test_a_wrong_value_under_the_old_name_is_told_what_is_allowed(file: Path) -> None:
    file.write_text("delay_s = 61\n")

    assert problems(file) == (f"{file}: delay_s: must be 0 s to 1 min, is 61",)


def test_config_check_warns_and_config_show_has_the_new_name(file: Path) -> None:
    file.write_text("delay_s = 3\n")

    checked = CliRunner().invoke(app, ["config", "check", str(file)])
    shown = CliRunner().invoke(app, ["config", "show", "daemon", "--json", "--config", str(file)])

    assert (checked.exit_code, checked.stdout) == (0, f"daemon: {file}: ok\n")
    assert checked.stderr == f"farside: warning: {file}: delay_s: is now 'wait_s'; rename it\n"
    assert {row["name"]: row["value"] for row in json.loads(shown.stdout)}["wait_s"] == 3.0


def test_the_settings_of_a_running_device_are_read_under_the_names_of_before() -> None:
    assert with_current_names(Example, {"delay_s": 3, "node": "n"}) == {"wait_s": 3, "node": "n"}
    decoded = decode_config(b'{"name": "swap1", "listen": ["tcp:h:1"], "disk_path": "/d"}')

    assert decoded.disk_path == Path("/d")
    assert decoded.listen_unproved, "it goes on with the clients that it has"


@pytest.mark.parametrize("program", ["daemon", "blockdev", "agent", "manager", "slurm"])
def test_no_old_name_is_the_name_of_another_setting(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    known = settings_of(load.kinds()[program])
    old = [setting.was for setting in known.values() if setting.was]

    assert len(old) == len(set(old))
    assert set(old).isdisjoint(known)
