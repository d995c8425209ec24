"""The units of systemd/, as systemd itself reads them."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.programs import outcome

UNITS = Path(__file__).parents[2] / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
TARGET = UNITS / "farside.target"
# What `systemd-analyze security` may give each, in tenths; systemd/README.md says why it is not less.
EXPOSURE_MOST = {
    "farside-daemon.service": 18,
    "farside-blockdev@.service": 30,
    "farside-swap-watch.service": 26,
    "farside-swap@.service": 51,
    "farside-manager.service": 16,
    "farside-agent.service": 93,
    "farside-slurm.service": 16,
    "farside-aggregator.service": 18,
    "farside-executor.service": 17,
    "farside-serve@.service": 19,
}
KEYLESS = ("farside-swap-watch.service", "farside-swap@.service", "farside-slurm.service")  # they read no key, no token
USERS = ("farside", "farside-manager", "farside-slurm", "farside-serve", "farside-aggregator", "farside-executor")
STANDARD = Path("/usr/lib/systemd/system")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine with our units, systemd's own, and the programs that they name."""
    if shutil.which("systemd-analyze") is None or not (STANDARD / "sysinit.target").exists():
        pytest.skip("no systemd here, whose systemd-analyze reads units")
    folder = tmp_path_factory.mktemp("root")
    units = folder / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for name in STANDARD.iterdir():
        if name.suffix in (".target", ".mount", ".slice", ".socket", ".path") and name.is_file():
            shutil.copy(name, units)
    for path in (*SERVICES, TARGET):
        shutil.copy(path, units)
    for program in ("usr/bin/farside", "usr/bin/env", "usr/bin/kill", "usr/bin/systemd-tmpfiles"):
        (folder / program).parent.mkdir(parents=True, exist_ok=True)
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    return folder


@pytest.mark.parametrize("path", [*SERVICES, TARGET], ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong(path: Path, root: Path) -> None:
    unit = path.name.replace("@", "@swap0")

    done = outcome(["systemd-analyze", "verify", "--man=no", f"--root={root}", unit])

    # It ends with 0 after a word that it does not know, too: only silence is clean.
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "farside" in line]
    assert (done.status, ours) == (0, [])


def words_of(path: Path) -> list[tuple[str, str]]:
    """The settings of a unit in their order, several units of one line apart."""
    lines = [line for line in path.read_text().splitlines() if line and line[0] not in "#[;"]
    return [(line.split("=", 1)[0], word) for line in lines for word in line.split("=", 1)[1].split()]


def test_one_target_brings_up_a_node_and_none_of_its_services_ends_with_another() -> None:
    services = [word for name, word in words_of(TARGET) if name == "Wants"]
    files = [word.replace("@swap0", "@") for word in services]
    ties = ("Requires", "Requisite", "BindsTo", "PartOf", "PropagatesStopTo", "Conflicts", "StopPropagatedFrom")

    tied = [
        (path.name, name, word)
        for path in (TARGET, *(UNITS / file for file in files))
        for name, word in words_of(path)
        if name in ties and word.startswith("farside")
    ]

    assert files == ["farside-daemon.service", "farside-blockdev@.service", "farside-agent.service"]
    assert tied == []


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_its_exposure_is_no_more_than_what_is_explained(path: Path, root: Path) -> None:
    limit = EXPOSURE_MOST[path.name]

    done = outcome(
        ["systemd-analyze", "security", "--offline=true", f"--root={root}", f"--threshold={limit}", path.name]
    )

    assert done.status == 0, f"more than {limit / 10}: {done.stdout[-2000:]}"


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_every_exposure_that_is_left_is_explained(path: Path, root: Path) -> None:
    done = outcome(
        ["systemd-analyze", "security", "--offline=true", f"--root={root}", "--json=short", path.name],
    )
    explained = (UNITS / "README.md").read_text()

    left = {row["json_field"] for row in json.loads(done.stdout) if row["set"] is False and row["exposure"]}

    assert {field for field in left if f"`{field}" not in explained} == set()


@pytest.mark.parametrize("path", [path for path in SERVICES if path.name not in KEYLESS], ids=lambda path: path.name)
def test_what_has_keys_or_tokens_leaves_no_core_dump(path: Path) -> None:
    """[L2] Agents, executors and deployments left one."""
    limits = [word for name, word in words_of(path) if name == "LimitCORE"]

    # A job that the agent starts may raise its own limit.
    assert limits == (["1:infinity"] if path.name == "farside-agent.service" else ["1"])


def test_after_any_end_of_the_agent_what_it_turned_down_is_put_back() -> None:
    unit = (UNITS / "farside-agent.service").read_text()

    assert "\nExecStopPost=-/usr/bin/farside agent --end-rest $AGENT_OPTIONS\n" in unit


def test_users_are_made_as_written(tmp_path: Path) -> None:
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("no systemd-sysusers here")
    (tmp_path / "etc").mkdir()

    done = outcome(["systemd-sysusers", f"--root={tmp_path}", str(UNITS / "sysusers.d/farside.conf")])

    assert (done.status, done.stderr.count("rror")) == (0, 0)
    assert all(f"{user}:x:" in (tmp_path / "etc/passwd").read_text() for user in USERS)


def test_folders_are_made_as_written(tmp_path: Path) -> None:
    if shutil.which("systemd-tmpfiles") is None:
        pytest.skip("no systemd-tmpfiles here")
    (tmp_path / "etc").mkdir()
    ids = {"farside": 998, "farside-manager": 997, "farside-serve": 996, "farside-aggregator": 995}
    ours = "".join(f"{name}:x:{uid}:{uid}::/run/farside:/bin/false\n" for name, uid in ids.items())
    (tmp_path / "etc/passwd").write_text(f"root:x:0:0::/root:/bin/sh\n{ours}")
    (tmp_path / "etc/group").write_text("root:x:0:\n" + "".join(f"{name}:x:{gid}:\n" for name, gid in ids.items()))
    (tmp_path / "etc/farside").mkdir()
    (tmp_path / "etc/farside/agent.token").write_text("t")
    (tmp_path / "etc/farside/aggregation.key").write_text("k")

    done = outcome(["systemd-tmpfiles", "--create", f"--root={tmp_path}", str(UNITS / "tmpfiles.d/farside.conf")])

    assert done.status == 0, done.stderr
    modes = {
        "run/farside": (0o1771, 0), "var/lib/farside": (0o711, 0), "var/lib/farside/manager": (0o700, 997),
        "var/lib/farside/serve": (0o700, 996),
        "etc/farside/tokens.toml": (0o600, 997), "etc/farside/agent.token": (0o600, 0),
        "etc/farside/aggregation.key": (0o600, 995),
    }  # fmt: skip
    found = {name: (tmp_path / name).stat() for name in modes}
    assert {name: (stat.st_mode & 0o7777, stat.st_uid) for name, stat in found.items()} == modes


@pytest.mark.parametrize("name", ["farside-serve@", "farside-aggregator", "farside-executor"])
def test_what_answers_users_tasks_may_not_read_the_clusters_key(name: str) -> None:
    unit = dict(line.split("=", 1) for line in (UNITS / f"{name}.service").read_text().splitlines() if "=" in line)
    key = next(
        line for line in (UNITS / "tmpfiles.d/farside.conf").read_text().splitlines() if "/etc/farside/key" in line
    )
    _, _, mode, user, _group, _ = key.split()

    # By mode 0600 a group that is shared with the donor, as the Aggregator's, gives nothing.
    assert mode == "0600"
    assert unit["User"] not in (user, "root")
    assert unit["User"] in USERS
    assert unit["Group"] == unit["User"]
    assert unit["CapabilityBoundingSet"] == ""


def test_a_reload_of_a_deployment_checks_it_before_its_front_is_killed() -> None:
    lines = [line.partition("=") for line in (UNITS / "farside-serve@.service").read_text().splitlines()]
    start = next(value for name, _, value in lines if name == "ExecStart")
    reload = [value for name, _, value in lines if name == "ExecReload"]

    # systemd runs them in order, up to the first that fails.
    assert reload == [start.replace("serve run", "serve run --check"), "/usr/bin/kill -HUP $MAINPID"]


@pytest.mark.parametrize("name", ["agent", "aggregator", "blockdev@", "daemon", "manager", "serve@"])
def test_a_service_that_hangs_is_killed_and_started_again(name: str) -> None:
    lines = (UNITS / f"farside-{name}.service").read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line)

    assert "WatchdogSec" in unit
    assert unit["Restart"] in ("on-failure", "always")


def test_an_update_of_the_package_reloads_deployments_and_stops_none(tmp_path: Path) -> None:
    script = (UNITS.parent / "debian/postinst").read_text().replace("/run/systemd/system", str(tmp_path))
    called = tmp_path / "called"
    (tmp_path / "bin").mkdir()
    for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles"):
        program = tmp_path / "bin" / name
        program.write_text(
            f'#!/bin/sh\necho "$@" >>{called}\ncase "$*" in\n'
            "list-units*farside-serve@*) echo farside-serve@a.service loaded active running A; "
            "echo farside-serve@b.service loaded active running B ;;\n"
            "reload*@a*|is-active*|*is-active*) exit 1 ;;\nesac\n"
        )
        program.chmod(0o755)
    (tmp_path / "postinst").write_text(script)

    done = outcome(
        ["env", f"PATH={tmp_path / 'bin'}:/usr/bin:/bin", "sh", str(tmp_path / "postinst"), "configure", "0.0.9"]
    )

    told = [line for line in called.read_text().splitlines() if "farside-serve@" in line and "list-units" not in line]
    assert told == ["reload farside-serve@a.service", "reload farside-serve@b.service"]
    assert (done.status, done.stderr.count("farside-serve@a.service was not reloaded")) == (0, 1)


@pytest.mark.parametrize("attached", ["before", "meanwhile", "never"])
def test_a_removal_stops_the_agent_before_it_looks_and_starts_it_again_where_it_is_refused(
    attached: str, tmp_path: Path
) -> None:
    script = (UNITS.parent / "debian/prerm").read_text()
    for name in ("/run/systemd/system", "/sys/block", "/proc/swaps", "/run/farside"):
        script = script.replace(name, f"{tmp_path}{name}")
    called, backend = tmp_path / "called", tmp_path / "sys/block/nbd0/backend"
    for folder in (tmp_path / "bin", tmp_path / "run/systemd/system", backend.parent):
        folder.mkdir(parents=True)
    if attached == "before":
        backend.write_text("farside:swap0\n")
    comes = f"echo farside:swap0 >{backend}; exit 1" if attached == "meanwhile" else "true"
    program = tmp_path / "bin/systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{called}\ncase "$*" in\n'
        f'is-active*) echo active ;;\n"stop farside-swap@"*) {comes} ;;\nesac\n'
    )
    program.chmod(0o755)
    (tmp_path / "prerm").write_text(script)

    done = outcome(["env", f"PATH={tmp_path / 'bin'}:/usr/bin:/bin", "sh", str(tmp_path / "prerm"), "remove"])

    told = [line for line in called.read_text().splitlines() if "is-active" not in line]
    is_refused = attached != "never"
    assert done.status == is_refused
    assert ("/dev/nbd0 is attached" in done.stderr) is is_refused
    assert told[0] == "stop farside-agent.service"
    assert (told[-1] == "start farside-agent.service") is is_refused
    assert any("farside-blockdev@" in line for line in told) is not is_refused
