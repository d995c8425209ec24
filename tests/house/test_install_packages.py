"""What `make` does about packages: that its lists hold what is run, and how it installs what is missing.

For the latter the system's programs are replaced by small ones that tell what they were asked.
"""

import functools
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import machine
from farside.cli.demo.main import PROGRAMS as DEMO_PROGRAMS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "install_packages.sh"
SHELL_TOOLS = ("cat", "chmod", "grep", "rm", "mktemp", "sleep", "tail", "sh")


class FakeSystem:
    """A PATH of its own: some Debian packages, some user."""

    def __init__(
        self, folder: Path, *, debian: bool = True, root: bool = True, installed: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.told = folder / "apt-get.told"
        self.policy = folder / "policy-rc.d"
        for tool in SHELL_TOOLS:
            real = next(path for path in (Path("/usr/bin") / tool, Path("/bin") / tool) if path.exists())
            (self.folder / tool).symlink_to(real)
        self.program("id", f"echo {0 if root else 1000}")
        self.program("apt-get", f'echo "$*" >>{self.told}')
        if debian:
            cases = "".join(f"{name}) printf installed;; " for name in installed)
            self.program("dpkg-query", f'for last; do :; done; case "$last" in {cases}*) exit 1;; esac')

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def install(self, *packages: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), *packages],
            env={"PATH": str(self.folder), "FARSIDE_POLICY_RC_D": str(self.policy), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def apt_calls(self) -> list[str]:
        return self.told.read_text().splitlines() if self.told.exists() else []


def test_what_is_there_is_not_asked_for_again(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path, root=False, installed=("gcc", "fio"))

    done = system.install("gcc", "fio")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert system.apt_calls == []


def test_only_what_is_missing_is_installed(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path, installed=("gcc",))

    assert system.install("gcc", "fio", "nbdkit").returncode == 0

    installed = "install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 fio nbdkit"
    assert system.apt_calls == ["update -qq", installed]


def test_who_is_not_root_is_told_the_command(tmp_path: Path) -> None:
    done = FakeSystem(tmp_path, root=False).install("fio")

    assert done.returncode == 1
    assert done.stderr == (
        "farside: not root, and packages are missing; run: sudo apt-get install --no-install-recommends fio\n"
    )


def test_another_system_than_debian_is_told_what_to_install(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path, debian=False)

    done, trusting = system.install("fio", "gcc"), system.install("fio", FARSIDE_NO_APT="1")

    assert done.returncode == 1
    assert done.stderr.startswith("farside: this is not Debian; ")
    assert done.stderr.endswith("fio gcc\n")
    assert trusting.returncode == 0


def test_apt_gets_own_words_are_shown_when_it_fails(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.program("apt-get", "echo no network; exit 100")

    done = system.install("fio")

    assert done.returncode == 1
    assert done.stderr.splitlines() == ["no network", "farside: apt-get could not install: fio"]


def test_package_lists_that_another_program_updates_are_waited_for(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    seen = tmp_path / "seen"
    locked = "echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)'"
    system.program("apt-get", f'echo "$*" >>{system.told}; [ -e {seen} ] || {{ {locked}; : >{seen}; exit 100; }}')

    assert system.install("fio", FARSIDE_APT_RETRY_S="0").returncode == 0

    assert [call.split()[0] for call in system.apt_calls] == ["update", "update", "install"]


@pytest.mark.parametrize("packages", [(), ("gcc",)])
def test_without_apt_it_goes_on_with_what_there_is(tmp_path: Path, packages: tuple[str, ...]) -> None:
    assert FakeSystem(tmp_path).install(*packages, FARSIDE_NO_APT="1").returncode == 0


@pytest.mark.parametrize("status", [0, 100])
def test_no_daemon_of_a_package_is_started_and_nothing_of_that_is_left_behind(tmp_path: Path, status: int) -> None:
    system = FakeSystem(tmp_path)
    answer = tmp_path / "answer"
    system.program("apt-get", f'"{system.policy}" slurmctld start; echo $? >"{answer}"; exit {status}')

    system.install("slurmctld")

    assert answer.read_text() == "101\n"
    assert not system.policy.exists()


def test_who_has_decided_already_which_daemons_start_is_left_alone(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    system.policy.write_text("mine")

    assert system.install("slurmctld").returncode == 0

    assert system.policy.read_text() == "mine"


def listed(target: str) -> set[str]:
    """The packages that the Makefile installs before a target runs."""
    names = f"$(BUILD_PACKAGES) $({target.upper()}_PACKAGES)"
    argv = ["make", "--silent", "--no-print-directory", "--eval", f"tell: ; @echo {names}", "tell"]
    return set(subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


def needed_by_tests() -> set[str]:
    """What the tests' `need` is asked for."""
    calls = (re.findall(r"\bneed\(([^)]*)\)", path.read_text()) for path in ROOT.glob("tests/**/*.py"))
    return {name for call in calls for names in call for name in re.findall(r'"([\w-]+)"', names)}


# Of `make test-cluster` alone: with PyTorch they are more than who changes a line wants to fetch for `make test`.
OF_THE_CLUSTER = {"slurmctld", "slurmd", "slurmdbd", "squeue", "scontrol", "sbatch", "sacct", "sacctmgr", "mariadbd"}
PROGRAMS: Mapping[str, set[str]] = {
    "demo": set(DEMO_PROGRAMS),
    "test": (needed_by_tests() | {"clang"}) - OF_THE_CLUSTER,
    "cluster": needed_by_tests(),
    "bench": set(machine.VERSION_COMMANDS) - {"cc"},  # a link to gcc that belongs to no package
}


def test_the_demo_can_run_after_its_packages_alone() -> None:
    # diffutils is essential: no Debian is without it, and nobody lists it.
    assert set(DEMO_PROGRAMS.values()) - {"diffutils"} <= listed("demo")


@functools.cache
def owners() -> Mapping[str, set[str]]:
    """The packages that hold a program, by its name; asked once, since each question reads dpkg's whole database."""
    argv = ["dpkg-query", "--search", "*bin/*"]
    found: dict[str, set[str]] = {}
    for line in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines():
        packages, _, path = line.partition(": ")
        names = {name.strip().split(":")[0] for name in packages.split(",")}
        found.setdefault(Path(path).name, set()).update(names)
    return found


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian, whose packages these are")
@pytest.mark.parametrize("target", PROGRAMS)
def test_every_program_that_a_target_runs_is_in_a_package_that_it_installs(target: str) -> None:
    missing: dict[str, set[str]] = {}
    installed = listed(target) | {"diffutils"}
    for program in PROGRAMS[target]:
        path = shutil.which(program)
        if path is None:
            continue  # this machine was not made ready for that target
        # Slurm's programs are links of update-alternatives, which belong to no package.
        held_by = owners().get(program) or owners().get(Path(path).resolve().name, set())

        if not held_by & installed:
            missing[program] = held_by
    assert missing == {}
