"""Farside in two guests, as an operator starts it; run as root inside each.

    python3 -m benchmarks.apps.plane lend KEY ADDRESS COUNT [MIB]                # donors d1, d2, ... of this machine
    python3 -m benchmarks.apps.plane borrow KEY ADDRESS COUNT TRANSPORT [clear]  # the device over them, and swap on it
    python3 -m benchmarks.apps.plane fill KEY ADDRESS COUNT TRANSPORT            # no swap; more than can be lent

MIB is what a donor and the programs of its cgroup may have; clear: pages are not encrypted. Each returns when what it
started runs, and prints its process id (the first donor's; the block process's).
"""

import sys
from pathlib import Path

from benchmarks.apps.size import HEADROOM_MIB, LENT_MIB, SLAB_MIB, SWAP_MIB
from tests.support.programs import run
from tests.support.soft_rdma import add_link
from tests.support.waiting import until
from tests.vm.guest.swap_plane import LIMIT_S, Donor, Plane, swap_must

FOLDER = Path("/root/plane")
MIB = 1 << 20
FIRST_PORT = 7701
DEVICE = "/dev/nbd0"
_FILL = ("fio", "--name=fill", "--rw=write", "--bs=256k", "--iodepth=4")
FILLS = 20  # at most: what was written before its slab was leased goes to the disk, and is written again
# Emulated processors and networks are ten to twenty times slower than real ones, and so is what counts as late.
SLOW = {"deadline_s": 5, "grace_s": 20}


def plane_of(
    key: str,
    address: str,
    count: int,
    *,
    memory_mib: int = 0,
    transport: str = "auto",
    size_mib: int = SWAP_MIB,
    is_clear: bool = False,
) -> Plane:
    """The settings of both machines; each starts its own part of it."""
    add_link("rxe0", "eth1")
    FOLDER.mkdir()
    slab = {"slab_bytes": f"{SLAB_MIB}MiB"}
    lending = {"max_slabs": 256, "headroom_bytes": f"{HEADROOM_MIB}MiB", **slab}
    donors = [
        Donor(name=f"d{n + 1}", address=address, port=FIRST_PORT + n, memory_bytes=memory_mib * MIB, settings=lending)
        for n in range(count)
    ]
    borrower = {
        "size_bytes": size_mib * MIB, "transport": transport, "workers": 1, "encrypt_remote": not is_clear, **slab,
        **SLOW,
    }  # fmt: skip
    plane = Plane(FOLDER, donors=donors, settings=borrower)
    (FOLDER / "key").write_text(f"{key}\n")
    return plane


def lend(key: str, address: str, count: int, *, memory_mib: int = 0) -> int:
    """Starts the donors; the first one's process id, when all answer."""
    plane = plane_of(key, address, count, memory_mib=memory_mib)
    for name in plane.donors:
        plane.start(name)
    for name in plane.donors:
        until((FOLDER / f"{name}.sock").exists, what=f"donor {name}", deadline_s=LIMIT_S, every_s=0.5)
    return plane.pid("d1")


def borrow(key: str, address: str, count: int, transport: str, is_clear: bool = False) -> Plane:
    """Starts the block process, has every slab of its device leased, and swaps to it.

    Attached as an operator does it, and then swapped to without discard, as the other back ends are: what the kernel
    discards is given back to the donors, and the first pages that go there next stay on the disk until they change.
    """
    plane = _started(key, address, count, transport, SWAP_MIB, is_clear=is_clear)
    swap_must("attach", "--socket", str(plane.admin_socket), "--connections", "1")
    run(["swapoff", DEVICE], limit_s=LIMIT_S)
    for _ in range(FILLS):
        run([*_FILL, "--ioengine=libaio", "--direct=1", f"--filename={DEVICE}", f"--size={SWAP_MIB}M"], limit_s=LIMIT_S)
        if len(plane.told()["slabs"]) * SLAB_MIB >= SWAP_MIB:
            break
    else:
        raise SystemExit(f"after {FILLS} fills not all slabs are leased: {plane.told()['slabs']}")
    _until_quiet(plane)
    run(["mkswap", DEVICE])
    run(["swapon", "--priority", "100", DEVICE])
    return plane


def fill(key: str, address: str, count: int, transport: str) -> Plane:
    """Starts the block process over a device that is larger than what can be lent, and writes all of it, twice."""
    plane = _started(key, address, count, transport, LENT_MIB)
    uri = f"nbd+unix:///swap0?socket={plane.nbd_socket}"
    for _ in range(2):
        run([*_FILL, "--ioengine=nbd", f"--uri={uri}", "--thread", f"--size={LENT_MIB}M"], limit_s=LIMIT_S)
        _until_quiet(plane)
    return plane


def _started(key: str, address: str, count: int, transport: str, size_mib: int, is_clear: bool = False) -> Plane:
    plane = plane_of(key, address, count, transport=transport, size_mib=size_mib, is_clear=is_clear)
    plane.start("blockdev")
    until(plane.is_up, what="a borrower with its donors", deadline_s=LIMIT_S, every_s=0.5)
    return plane


def _until_quiet(plane: Plane) -> None:
    until(lambda: not plane.told()["pending_bytes"], what="a disk that has all", deadline_s=LIMIT_S, every_s=0.5)


def main() -> None:
    """What the arguments say."""
    verb, key, address, count, *rest = sys.argv[1:]
    if verb == "lend":
        print(lend(key, address, int(count), memory_mib=int(rest[0]) if rest else 0))
    elif verb == "borrow":
        print(borrow(key, address, int(count), rest[0], is_clear="clear" in rest[1:]).told()["server_pid"])
    else:
        print(fill(key, address, int(count), rest[0]).told()["server_pid"])


if __name__ == "__main__":
    main()
