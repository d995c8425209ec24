"""What `make` does about packages, with the system's programs replaced by small ones that tell what they were asked."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "install_packages.sh"
SHELL_TOOLS = ("cat", "rm", "mktemp", "tail", "sh")


class FakeSystem:
    """A PATH of its own: some Debian packages, some user."""

    def __init__(
        self, folder: Path, *, debian: bool = True, root: bool = True, installed: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.told = folder / "apt-get.told"
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
            env={"PATH": str(self.folder), **environment},
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

    assert system.apt_calls == ["update -qq", "install -qq -y --no-install-recommends fio nbdkit"]


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


@pytest.mark.parametrize("packages", [(), ("gcc",)])
def test_without_apt_it_goes_on_with_what_there_is(tmp_path: Path, packages: tuple[str, ...]) -> None:
    assert FakeSystem(tmp_path).install(*packages, FARSIDE_NO_APT="1").returncode == 0
