"""The command as a user runs it: a process, its output, its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from farside.cli.app import app
from farside.config import load

# There are 205: Typer, what it needs of the standard library, and 29 of Farside's.
HELP_MODULES_LIMIT = 240


def farside(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farside", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def test_help_loads_few_modules() -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print(len(sys.modules), file=sys.stderr)); "
        "sys.argv = ['farside', '--help']; from farside.cli import main; main()"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert int(done.stderr) < HELP_MODULES_LIMIT


def test_help_names_every_command() -> None:
    out = farside("--help").stdout

    for command in ("daemon", "blockdev", "status", "doctor", "demo", "keygen", "config", "sandbox"):
        assert f"\n  {command} " in out


def test_help_of_a_command_loads_nothing_heavy() -> None:
    code = "import sys; import farside.cli.app; print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = ("asyncio", "rich", "msgspec", "cffi", "prometheus_client", "psutil", "pydantic")

    done = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_command_reaches_for_the_manager_without_loading_anything_heavy(tmp_path: Path) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print([m for m in sys.modules if m.split('.')[0] in %r])); "
        "sys.argv = ['farside', 'submit', '--gpus', '2', '--manager', %r, '--', 'true']; "
        "from farside.cli import main; main()"
    )
    heavy = ("asyncio", "rich", "cffi", "prometheus_client", "psutil", "pydantic", "fastapi", "sqlalchemy")

    argv = [sys.executable, "-c", code % (heavy, f"unix:{tmp_path}/none.sock")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert "no manager answers there" in done.stderr
    assert done.stdout.strip() == "[]"


def test_a_wrong_setting_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "daemon.toml"
    path.write_text("slab_byte = 3\n")

    done = farside("daemon", "--config", str(path))

    assert done.returncode == 2
    assert done.stderr == f"farside: {path}: slab_byte: no such setting; did you mean 'slab_bytes'?\n"


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = farside("--debug", "keygen", str(tmp_path))

    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_setting_on_the_command_line_needs_an_equals_sign() -> None:
    done = farside("daemon", "--set", "slab_bytes")

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is not NAME=VALUE" in done.stderr


def test_config_check_tells_every_problem_and_what_is_well(tmp_path: Path) -> None:
    good, bad = tmp_path / "daemon.toml", tmp_path / "blockdev.toml"
    good.write_text('node = "d1"\n')
    bad.write_text("workers = 0\nspin_us = -1\n")  # and nothing of a disk

    done = farside("config", "check", str(good), str(bad))

    assert done.returncode == 2
    assert done.stdout == f"daemon: {good}: ok\n"
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == ["workers", "spin_us", "disk_path"]


@pytest.mark.parametrize("disk", ["/dev/null", "/"])
def test_config_check_refuses_a_disk_that_is_none(tmp_path: Path, disk: str) -> None:
    path = tmp_path / "blockdev.toml"
    path.write_text(f'disk_path = "{disk}"\n')

    done = farside("config", "check", str(path))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"farside: {path}: disk_path: {disk} is neither a file nor a block device; name one of these\n"
    )


def test_config_check_refuses_a_policy_that_the_manager_would_refuse(tmp_path: Path) -> None:
    path = tmp_path / "manager.toml"
    path.write_text('policy = "yarn-cs"\n')

    done = farside("config", "check", str(path))

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(
        f"farside: {path}: policy: yarn-cs is the order of a scheduler whose placement is yarn"
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("slurm", 'order_by = "nice"\ngate = true', ["order_by: nice goes with neither gate nor preempt; "]),
        ("slurm", 'power = "ces"\npower_settings = "bogus=1"', ["power_settings: ces: no setting 'bogus'; "]),
        ("slurm", 'policy = "timeshare"', ["policy: timeshare takes turns by preemption, and preempt is off; "]),
        ("slurm", 'power_settings = "bogus=1"', ["power_settings: are for an energy policy, and power = none "]),
        ("manager", 'holidays_file = "/gone"', ["holidays_file: is for forecasts, and power = none makes none; "]),
        ("manager", 'power_settings = "x=1"', ["power_settings: are for an energy policy, and power = none "]),
        (
            "manager", 'power = "ces"\npower_drivers = "/gone"\ntls_cert = "/cert.pem"\ntls_key = "/key.pem"\n'
            'policy_settings = "nosuch=2"',
            ["policy_settings: las: no setting 'nosuch'; ", "power_drivers: /gone", "/cert.pem"],
        ),
        ("manager", 'power = "ces"\nholidays_file = "/gone"', ["holidays_file: /gone: can't be read: "]),
        ("manager", 'placement = "skew"\nplacement_settings = "packlimit=2"', ["placement_settings: skew: "]),
        ("manager", 'policy = "nosuch"\npolicy_settings = "a=1"', ["policy: no policy 'nosuch'; "]),
    ],
)  # fmt: skip
def test_config_check_prints_each_line_with_which_a_program_would_refuse_to_start(
    tmp_path: Path, name: str, text: str, said: list[str]
) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(f"{text}\n" + ('partitions = "gpu"\n' if name == "slurm" else ""))

    done = CliRunner().invoke(app, ["config", "check", str(path)])

    assert (done.exit_code, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == len(said)
    for line, begin in zip(lines, said, strict=True):
        assert line.startswith(f"farside: {path}: ")
        assert begin in line


def test_config_check_names_the_file_of_the_setting_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "ETC", tmp_path)
    (tmp_path / "manager.toml").write_text('policy = "srtf"\n')
    (tmp_path / "manager.d").mkdir()
    site = tmp_path / "manager.d" / "site.toml"
    site.write_text('policy_settings = "nosuch=2"\n')

    done = CliRunner().invoke(app, ["config", "check", "--for", "manager"])

    assert done.stderr.startswith(f"farside: {site}: policy_settings: srtf: no setting 'nosuch'; ")


def test_config_check_tells_a_file_that_is_well_from_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "ETC", tmp_path)
    (tmp_path / "daemon.d").mkdir()
    (tmp_path / "daemon.d" / "site.toml").write_text('node = "d1"\n')

    done = CliRunner().invoke(app, ["config", "check"])

    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"daemon: {tmp_path}/daemon.d/site.toml: ok",
        f"blockdev: {tmp_path}/blockdev.toml: not there, defaults",
        f"agent: {tmp_path}/agent.toml: not there, defaults",
        f"manager: {tmp_path}/manager.toml: not there, defaults",
        f"slurm: {tmp_path}/slurm.toml: not there, defaults",
    ]


def test_config_check_holds_defaults_that_are_asked_for_to_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "ETC", tmp_path)

    well = CliRunner().invoke(app, ["config", "check", "--for", "daemon"])
    wrong = CliRunner().invoke(app, ["config", "check", "--for", "blockdev"])

    assert (well.exit_code, well.stdout) == (0, f"daemon: {tmp_path}/daemon.toml: not there, defaults\n")
    assert wrong.exit_code == 2


def test_config_check_asks_whose_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('node = "d1"\n')

    said = farside("config", "check", str(path)).stderr

    assert "--for daemon or --for blockdev or --for agent or --for manager or --for slurm" in said
    assert farside("config", "check", "--for", "daemon", str(path)).returncode == 0


def test_config_show_tells_value_source_and_meaning(tmp_path: Path) -> None:
    path = tmp_path / "daemon.toml"
    path.write_text('slab_bytes = "32MiB"\n')

    text = farside("config", "show", "daemon", "--config", str(path)).stdout
    rows = {
        row["name"]: row for row in json.loads(farside("config", "show", "daemon", "--json", "-c", str(path)).stdout)
    }

    assert f"= 32 MiB   [{path}]" in text
    assert rows["slab_bytes"]["value"] == 32 << 20
    assert (rows["slab_bytes"]["default"], rows["slab_bytes"]["unit"]) == ("64 MiB", "bytes")
    assert rows["headroom_bytes"]["source"] == "default"


def test_keygen_makes_a_key_once(tmp_path: Path) -> None:
    assert farside("keygen", str(tmp_path / "key")).returncode == 0

    again = farside("keygen", str(tmp_path / "key"))

    assert again.returncode == 2
    assert "use --add" in again.stderr


def test_keygen_adds_and_retires(tmp_path: Path) -> None:
    path = str(tmp_path / "key")

    codes = [
        farside("keygen", *more, path).returncode for more in ((), ("--add",), ("--retire",), ("--add", "--retire"))
    ]

    assert codes == [0, 0, 0, 2]


def test_doctor_says_what_to_do_as_text_and_json() -> None:
    text, data = farside("doctor"), farside("doctor", "--json")

    checks = {check["name"]: check for check in json.loads(data.stdout)}
    assert checks["memory"]["outcome"] in ("ok", "warning")
    assert "io_uring" in text.stdout
    assert text.returncode == data.returncode == any(check["outcome"] == "failed" for check in checks.values())


def test_doctor_fails_for_a_key_that_others_may_read(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("00" * 32)
    key.chmod(0o644)
    (tmp_path / "daemon.toml").write_text(f'key_file = "{key}"\n')

    done = farside("doctor", "--config", str(tmp_path / "daemon.toml"))

    assert done.returncode == 1
    assert f"chmod 0600 {key}" in done.stdout


def test_doctor_is_told_whose_settings_a_file_has(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'key_file = "{tmp_path}/key"\n')

    asked = farside("doctor", "--config", str(path))
    told = farside("doctor", "--config", str(path), "--for", "daemon")

    assert (asked.returncode, asked.stderr.count("\n")) == (2, 1)
    assert "give --for daemon" in asked.stderr
    assert f"{tmp_path}/key: No such file or directory" in told.stdout


def test_doctor_reads_the_peers_file(tmp_path: Path) -> None:
    (tmp_path / "blockdev.toml").write_text(f'peers_file = "{tmp_path}/peers.toml"\nprotection = "replica"\n')
    command = ("doctor", "--json", "--config", str(tmp_path / "blockdev.toml"))

    missing = json.loads(farside(*command).stdout)
    (tmp_path / "peers.toml").write_text('[[donor]]\nnode = "d1"\ncontrol = "tcp:10.0.0.1:7677"\n')
    there = json.loads(farside(*command).stdout)

    assert [check["outcome"] for check in missing if check["name"] == "peers"] == ["failed"]
    assert [check["found"] for check in there if check["name"] == "peers"] == [f"{tmp_path}/peers.toml: 1 donor"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command", [("sizing",), ("doctor", "--json"), ("swap", "status", "--json"), ("config", "show", "daemon")]
)
def test_a_full_standard_output_is_one_line(command: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "farside", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr
    assert "incomplete" in done.stderr


def test_a_reader_that_is_gone_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as gone:
        command = [sys.executable, "-m", "farside", "config", "show", "daemon"]
        environment = {**os.environ, "PYTHONUNBUFFERED": ""}
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True, check=False, env=environment)

    assert (done.returncode, done.stderr) == (1, "")


def test_a_running_process_is_asked_by_status(tmp_path: Path) -> None:
    done = farside("status", "--state", str(tmp_path))

    assert done.returncode != 0
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("demon",), ("config", "shw"), ("sandbox", "--size", "12q"), ("config", "show", "x")]
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert farside(*arguments).returncode == 2
