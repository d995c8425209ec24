"""RDMA as the library sees it, with a driver that only counts: tests/vm has real queue pairs."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from farside.agent.profile.ring_file import LIBRARY
from tests.profile.preloaded import ring_file, variables

SOURCE = Path(__file__).parent / "fake_rdma.c"
SENT, READ = [(3096, 5)], [(9000, 5)]
EXTENDED_SENT, EXTENDED_READ = [(4000, 7), (2000, 7), (6, 7)], [(5000, 7)]


def built(folder: Path) -> Sequence[str]:
    """The program and its arguments."""
    if shutil.which("cc") is None or not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("no compiler, or no libibverbs-dev")
    if b"verbs_set_ops" not in LIBRARY.read_bytes():
        pytest.skip("the library was built without libibverbs-dev")
    library, driver, program = folder / "libibverbs.so.1", folder / "libfake-rdmav34.so", folder / "program"
    shared = ("cc", "-Wall", "-Wextra", "-Werror", "-g", "-fPIC", "-shared", str(SOURCE), "-o")
    for command in (
        (*shared, str(library), "-DLIBRARY", "-Wl,-soname,libibverbs.so.1"),
        (*shared, str(driver), "-DDRIVER", f"-L{folder}", "-l:libibverbs.so.1"),
        ("cc", "-Wall", "-Wextra", "-Werror", "-g", str(SOURCE), "-o", str(program)),
    ):
        subprocess.run(command, check=True)
    return (str(program), str(library), str(driver))


def test_messages_of_a_driver_that_was_loaded_late_are_seen(tmp_path: Path) -> None:
    command = built(tmp_path)
    with ring_file() as file:
        told = {**variables(file.path), "LD_LIBRARY_PATH": str(tmp_path)}
        done = subprocess.run(command, env=told, capture_output=True, text=True, check=True)
        events = file.read().processes[0].events

    assert (done.stdout.split(), done.stderr) == (["12", "1", "3", "4", "11014"], "")
    assert [(event.bytes, event.flow & 0x7FFF) for event in events if not event.is_read] == SENT + EXTENDED_SENT
    assert [(event.bytes, event.flow & 0x7FFF) for event in events if event.is_read] == READ + EXTENDED_READ
    assert all(event.flow & 0x8000 for event in events)


def test_the_driver_does_the_same_without_a_file(tmp_path: Path) -> None:
    told = {**variables(tmp_path / "missing"), "LD_LIBRARY_PATH": str(tmp_path)}

    done = subprocess.run(built(tmp_path), env=told, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["12", "1", "3", "4", "11014"]
