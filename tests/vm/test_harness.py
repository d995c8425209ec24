"""The harness itself, as far as it needs no guest."""

import gzip
import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from farside.errors import ConfigError, Unavailable
from tests.support.programs import need
from tests.vm.harness import accelerator, place
from tests.vm.harness.cpio import Entry, archive
from tests.vm.harness.image import Image, lines, ready_image
from tests.vm.harness.machine import Accelerator, Paths, Spec, arguments, switch_arguments
from tests.vm.inside import Case, read_results

ROOT = Path(__file__).parents[2]
SPEC = Spec(accelerator=Accelerator.TCG)


def paths(folder: Path) -> Paths:
    names = ("kernel", "initrd", "disk", "payload", "console", "serial", "control")
    return Paths(**{name: folder / name for name in names})


def test_the_host_opens_no_port_but_ssh_on_loopback() -> None:
    argv = arguments(SPEC, paths(Path("/x")), name="node1", port=Path("/x/port1"))

    networks = [value for word, value in pairwise(argv) if word == "-netdev"]
    assert networks == [
        "user,id=admin,restrict=on,hostfwd=tcp:127.0.0.1:0-:22",
        "stream,id=data,server=off,addr.type=unix,addr.path=/x/port1",
    ]


def test_a_guest_of_its_own_needs_no_switch() -> None:
    argv = arguments(SPEC, paths(Path("/x")), name="node1", port=None)

    assert "hubport,id=data,hubid=1" in argv


def test_waking_differs_from_booting_by_the_snapshots_name_only() -> None:
    boot = arguments(SPEC, paths(Path("/x")), name="node1", port=None)
    wake = arguments(SPEC, paths(Path("/x")), name="node1", port=None, wake="ready")

    assert wake == [*boot, "-loadvm", "ready"]


def test_the_switch_joins_every_port() -> None:
    argv = switch_arguments({1: Path("/x/port1"), 2: Path("/x/port2")}, Path("/x/qmp"))

    assert argv.count("-netdev") == 4
    assert "hubport,id=hub2,hubid=1,netdev=port2" in argv


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A machine with /dev/kvm on which a kernel hangs; the command lines that were tried."""
    tried: list[list[str]] = []

    def hang(argv: list[str], *, timeout: float, **_: object) -> None:
        tried.append(argv)
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.delenv(accelerator.FORCE, raising=False)
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(subprocess, "run", hang)
    return tried


def test_kvm_that_hangs_is_tried_once_and_then_remembered(tmp_path: Path, trials: list[list[str]]) -> None:
    found = [accelerator.choose(Image(folder=tmp_path)) for _ in range(2)]

    assert found == [Accelerator.TCG, Accelerator.TCG]
    (argv,) = trials
    assert {"kvm", "-no-reboot"} <= set(argv)


def test_what_was_remembered_before_a_reboot_is_tried_again(tmp_path: Path, trials: list[list[str]]) -> None:
    (tmp_path / "accelerator").write_text("another-boot KVM\n")

    assert accelerator.choose(Image(folder=tmp_path)) is Accelerator.TCG
    assert len(trials) == 1


def test_the_accelerator_can_be_forced(
    tmp_path: Path, trials: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(accelerator.FORCE, "kvm")
    assert accelerator.choose(Image(folder=tmp_path)) is Accelerator.KVM

    monkeypatch.setenv(accelerator.FORCE, "warp")
    with pytest.raises(ConfigError, match="FARSIDE_VM_ACCELERATOR=warp; kvm, tcg"):
        accelerator.choose(Image(folder=tmp_path))
    assert trials == []


def test_a_machine_that_does_not_reach_debian_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("mmdebstrap", "mke2fs", "ssh-keygen")
    monkeypatch.setenv("FARSIDE_VM_CACHE", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    with pytest.raises(Unavailable, match="Debian's archive is not reached"):
        ready_image()


def test_an_initrd_is_what_cpio_reads(tmp_path: Path) -> None:
    packed = archive(
        [Entry(name="bin"), Entry(name="bin/busybox", body=b"odd"), Entry(name="init", body=b"#!/bin/sh\n")]
    )

    need("cpio")
    listed = subprocess.run(["cpio", "-itv", "--quiet"], input=packed, capture_output=True, check=True, cwd=tmp_path)
    rows = [line.split() for line in listed.stdout.decode().splitlines()]
    assert [(row[0], row[4], row[-1]) for row in rows] == [
        ("drwxr-xr-x", "0", "bin"),
        ("-rwxr-xr-x", "3", "bin/busybox"),
        ("-rwxr-xr-x", "10", "init"),
    ]


def test_every_part_of_an_initrd_begins_on_a_fourth_byte() -> None:
    packed = archive([Entry(name=name, body=b"x" * size) for name in ("a", "bc") for size in range(5)])

    assert len(packed) % 4 == 0
    assert all(at % 4 == 0 for at in range(len(packed)) if packed.startswith(b"070701", at))
    assert len(gzip.compress(packed)) < len(packed)


def test_an_image_is_another_when_a_file_of_it_is(tmp_path: Path) -> None:
    (tmp_path / "packages.txt").write_text("fio\n")
    before = place.content_key(tmp_path, "bookworm")

    (tmp_path / "packages.txt").write_text("fio\nnbdkit\n")

    assert len({before, place.content_key(tmp_path, "bookworm"), place.content_key(tmp_path, "trixie")}) == 3


def test_old_images_are_dropped_but_not_those_in_use_or_being_built(tmp_path: Path) -> None:
    for age_s, name in enumerate(("newest", "new", "used", "old", "older.work")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "built").touch()
        os.utime(tmp_path / name, (1e9 - age_s, 1e9 - age_s))

    with place.in_use(tmp_path / "used"):
        os.utime(tmp_path / "used", (1e9 - 2, 1e9 - 2))
        place.drop_old(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {"newest", "new", "used", "older.work"}


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARSIDE_VM_CACHE", str(tmp_path / "cache"))
    left = tmp_path / "fs-vm-left"
    left.mkdir()
    (left / "lock").touch()
    (left / "node1.qcow2").touch()

    with place.scratch_folder(tmp_path) as first, place.scratch_folder(tmp_path) as second:
        assert set(tmp_path.glob("fs-vm-*")) == {first, second}

    assert list(tmp_path.glob("fs-vm-*")) == []


def test_results_of_the_guest_come_back_with_their_reasons() -> None:
    junit = """<testsuites><testsuite>
      <testcase classname="tests.vm.guest.test_a" name="test_good" time="1.5"/>
      <testcase classname="tests.vm.guest.test_a" name="test_bad" time="0.1"><failure message="assert 0"/></testcase>
      <testcase classname="tests.vm.guest.test_a" name="test_set_up" time="0"><error message="on setup"/></testcase>
      <testcase classname="tests.vm.guest.test_a" name="test_not_here"><skipped message="no card"/></testcase>
    </testsuite></testsuites>"""

    assert read_results(junit) == (
        Case(name="test_a::test_good", outcome="passed", duration_s=1.5, trouble=""),
        Case(name="test_a::test_bad", outcome="failed", duration_s=0.1, trouble="assert 0"),
        Case(name="test_a::test_set_up", outcome="failed", duration_s=0.0, trouble="on setup"),
        Case(name="test_a::test_not_here", outcome="skipped", duration_s=0.0, trouble="no card"),
    )


@pytest.mark.parametrize("name", ["packages.txt", "modules.txt", "masked.txt"])
def test_a_list_of_the_image_names_everything_once(name: str) -> None:
    text = (Path(__file__).parent / "image" / name).read_text()
    named = [line for line in text.splitlines() if not line.startswith("#")]

    assert len(named) == len(set(named))
    assert all(line.strip() == line and line for line in named)


def test_guests_have_what_our_package_depends_on() -> None:
    """Nothing can be fetched there, so dpkg left the package unconfigured."""
    (depends,) = re.findall(r"^Depends: (.*)$", (ROOT / "debian" / "control.in").read_text(), re.MULTILINE)
    needed = {one.split()[0] for one in depends.split(", ") if not one.startswith("@")}

    assert needed <= {*lines("packages.txt")}
