"""The tests of tests/vm/guest/, each file in a guest of its own; and all that are marked smoke in one guest."""

from pathlib import Path

import pytest

from tests.vm.harness.guest import Guest
from tests.vm.inside import Inside

# Memory in MiB of guests that need more than the usual.
MEMORY = {"test_survival.py": 1024}
GUEST_FILES = sorted((Path(__file__).parent / "guest").glob("test_*.py"))
FILES = [
    pytest.param(path.name, marks=[pytest.mark.guests(memory_mib=MEMORY[path.name])] if path.name in MEMORY else [])
    for path in GUEST_FILES
]

pytestmark = pytest.mark.vm


@pytest.mark.long
@pytest.mark.smoke
def test_the_smoke_of_all_files_passes_in_one_guest(guest: Guest, inside: Inside) -> None:
    # Only these: on an emulated processor it takes long to load all the others.
    files = [path.name for path in GUEST_FILES if "pytest.mark.smoke" in path.read_text()]

    cases = inside.run(guest, "smoke", files, "-m", "smoke")

    assert cases


@pytest.mark.parametrize("file", FILES)
def test_in_a_guest(file: str, guest: Guest, inside: Inside) -> None:
    cases = inside.run(guest, Path(file).stem, [file])

    assert cases
