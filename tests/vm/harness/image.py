"""The guests' disk, kernel and initrd: Debian 12 from its archive, built once for each content of `tests/vm/image/`."""

import gzip
import os
import shutil
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from farside.errors import Unavailable
from tests.vm.harness import place
from tests.vm.harness.cpio import Entry, archive
from tests.vm.harness.program import need, run

SUITE = "bookworm"
PYTHON = (3, 11)  # bookworm's: compiled modules of the host must fit the guest
DISK_BYTES = 3 << 30  # sparse
# Root's disk alone: udev and the data network come up later, by name.
_INITRD_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")
# The one that mmdebstrap takes for this suite.
_ARCHIVE = f"http://deb.debian.org/debian/dists/{SUITE}/Release"
_ARCHIVE_LIMIT_S = 30.0
_SOURCES = Path(__file__).parents[1] / "image"
_MMDEBSTRAP = (
    "mmdebstrap",
    "--variant=minbase",
    '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A folder of the cache with all that a guest boots from; nothing in it is written to again."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The root file system, raw ext4; guests write to overlays."""
        return self.folder / "root.ext4"

    @property
    def kernel(self) -> Path:
        """Debian's vmlinuz."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """Mounts the root disk."""
        return self.folder / "initrd.gz"

    @property
    def key(self) -> Path:
        """Private key that root's sshd in the guest takes."""
        return self.folder / "id"


def ready_image() -> Image:
    """The image of this checkout, from the cache or built now (2 to 4 minutes).

    Raises:
        Unavailable: It is not in the cache, and this machine cannot build it.
        HarnessError: Building failed; says what the failing program said.
    """
    folder = _folder()
    with place.locked(folder.with_suffix(".lock")):
        if not is_built():
            _check_able()
            _build(folder)
            place.drop_old(folder.parent)
    return Image(folder=folder)


def is_built() -> bool:
    """It is in the cache."""
    return (_folder() / "built").exists()


def _folder() -> Path:
    return place.cache_folder() / place.content_key(_SOURCES, SUITE, " ".join((*_MMDEBSTRAP, *_INITRD_MODULES)))


def lines(name: str) -> tuple[str, ...]:
    """What a list of `tests/vm/image/` names, without its comments."""
    return tuple(line for line in (_SOURCES / name).read_text().split("\n") if line and not line.startswith("#"))


def _check_able() -> None:
    need("mmdebstrap", "mke2fs", "ssh-keygen")
    if os.geteuid():
        hint = "run `sudo make test-vm` once, or set FARSIDE_VM_CACHE"
        raise Unavailable("the guest image is built as root", hint=hint)
    try:
        # An opener of its own: the shared one keeps the proxies of its first use.
        urllib.request.build_opener().open(_ARCHIVE, timeout=_ARCHIVE_LIMIT_S).close()
    except OSError as error:
        hint = "build the image where it is reached, and bring it here (FARSIDE_VM_CACHE)"
        raise Unavailable(f"Debian's archive is not reached ({_ARCHIVE}: {error})", hint=hint) from error


def _build(folder: Path) -> None:
    # Beside its final place and renamed when whole: a build that was cut short is built again.
    work = folder.with_suffix(place.WORK)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    began_s = time.monotonic()
    root, log = work / "root", work / "build.log"
    try:
        include = f"--include={','.join(lines('packages.txt'))}"
        hook = f'--customize-hook={_SOURCES}/fetch_kernel.sh "$1"'
        run([*_MMDEBSTRAP, include, hook, SUITE, root], limit_s=1200, log=log)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", work / "id"], limit_s=30, log=log)
        run([_SOURCES / "configure.sh", root, work / "id.pub"], limit_s=120, log=log)
        next((root / "boot").glob("vmlinuz-*")).rename(work / "vmlinuz")
        (work / "initrd.gz").write_bytes(gzip.compress(archive(_initrd(root)), compresslevel=1))
        with (work / "root.ext4").open("wb") as file:
            file.truncate(DISK_BYTES)
        run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", root, work / "root.ext4"], limit_s=300, log=log)
        (work / "built").write_text(f"{time.monotonic() - began_s:.0f} s\n")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    work.rename(folder)


def _initrd(root: Path) -> list[Entry]:
    kernel = next((root / "usr/lib/modules").iterdir())
    wanted: list[str] = []
    for name in _INITRD_MODULES:
        argv: list[str | Path] = ["chroot", root, "modprobe", "-S", kernel.name, "--show-depends", name]
        found = [line.split()[1] for line in run(argv, limit_s=30).splitlines() if line.startswith("insmod ")]
        wanted += [path for path in found if path not in wanted]
    # Numbered: init.sh loads them in the order of their names.
    modules = [
        Entry(name=f"modules/{n:02d}-{Path(path).name}", body=(root / path.lstrip("/")).read_bytes())
        for n, path in enumerate(wanted)
    ]
    folders = [Entry(name=name) for name in ("bin", "proc", "sys", "dev", "newroot", "modules")]
    busybox = Entry(name="bin/busybox", body=(root / "usr/bin/busybox").read_bytes())
    return [*folders, busybox, *modules, Entry(name="init", body=(_SOURCES / "init.sh").read_bytes())]
