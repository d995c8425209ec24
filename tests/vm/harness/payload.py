"""The disk that brings farside into a guest: this working tree and the Python packages it runs on, made anew each time.

It is apart from the image so that a change of code costs seconds. The guest mounts it read only at /farside:

    site/   on the guest's Python path: the package with its built engine, and what it depends on
    bin/    `farside`
    tree/   tests/, benchmarks/, vagrant/, systemd/ and pyproject.toml; where pytest runs in the guest
"""

import compileall
import platform
import shutil
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

from farside.errors import Unavailable
from tests.vm.harness.image import PYTHON
from tests.vm.harness.program import run
from tools.distributions import closure, copy_distribution

ROOT = Path(__file__).parents[3]
# Fixed: a woken guest does not look at the disk's size again.
DISK_BYTES = 256 << 20
# What no daemon imports as it starts, and is 300 MB.
_LEFT_OUT = {"scipy", "matplotlib", "pyarrow"}
_FOR_TESTS = ("pytest", "pytest-timeout", "hypothesis")
_GUEST_LIBC = (2, 36)
# As pip writes it: a manager's parts import it anew.
_LAUNCHER = '#!/usr/bin/python3\nfrom farside.cli import main\n\nif __name__ == "__main__":\n    main()\n'


def build(folder: Path) -> Path:
    """Makes the disk in `folder`, which must exist; returns its path.

    Raises:
        Unavailable: What was compiled for this machine's Python does not fit the guest's.
    """
    _check_fits()
    staging = folder / "payload"
    site, tree = staging / "site", staging / "tree"
    for name in sorted(closure(("farside", *_FOR_TESTS), _LEFT_OUT)):
        copy_distribution(name, site, with_bytecode=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.o", ".vagrant")
    shutil.copytree(ROOT / "src/farside", site / "farside", ignore=ignore)
    for name in ("tests", "benchmarks", "vagrant", "systemd"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tree)
    launcher = staging / "bin/farside"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
    # The disk is read only, and compiling under emulation is slow.
    mode = PycInvalidationMode.UNCHECKED_HASH
    for part in (site / "farside", tree):
        compileall.compile_dir(part, quiet=2, workers=0, invalidation_mode=mode)
    disk = folder / "payload.ext4"
    blank(disk)
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", staging, disk], limit_s=120)
    shutil.rmtree(staging)
    return disk


def blank(disk: Path) -> None:
    """A disk of the right size with nothing on it."""
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)


def _check_fits() -> None:
    libc = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    if sys.version_info[:2] != PYTHON or libc > _GUEST_LIBC:
        here = f"Python {platform.python_version()}, glibc {platform.libc_ver()[1]}"
        raise Unavailable(f"what is compiled here ({here}) does not fit Debian 12's Python 3.11", hint="use Debian 12")
