"""What a guest's swap lies on: set up with the commands that an operator would give."""

import secrets

from benchmarks.apps.result import BackEnd
from benchmarks.apps.size import DISK_BYTES_PER_S, DISK_IOPS, PAGE_CLUSTER, SWAP_MIB
from farside.kmod_shim.swap.sysctl import READAHEAD
from tests.vm.harness.guest import Guest

START_S = 400.0  # Python programs under emulation, on a host that may be busy
MODULE = "cd /farside/tree && exec python3 -B -m benchmarks.apps"
_SWAPON = "mkswap {0} >/dev/null && swapon {0}"
_NBDKIT = "nbdkit -i {address} -p 10809 -P /run/nbdkit.pid memory {mib}M && cat /run/nbdkit.pid"
# nbd-client waits for the kernel's device; the scheduler as Farside sets it.
_NBD_CLIENT = (
    "modprobe nbd && nbd-client {address} 10809 /dev/nbd0 -b 4096 -C 1 >/dev/null && "
    "echo none >/sys/block/nbd0/queue/scheduler && " + _SWAPON.format("/dev/nbd0")
)
_NVME_TARGET = """set -e
modprobe brd rd_nr=1 rd_size={kib}; modprobe nvmet; modprobe nvmet-tcp
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nvmet
mkdir subsystems/swap; echo 1 >subsystems/swap/attr_allow_any_host
mkdir subsystems/swap/namespaces/1; echo -n /dev/ram0 >subsystems/swap/namespaces/1/device_path
echo 1 >subsystems/swap/namespaces/1/enable
mkdir ports/1; cd ports/1
echo tcp >addr_trtype; echo ipv4 >addr_adrfam; echo {address} >addr_traddr; echo 4420 >addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/swap subsystems/swap
"""
_NVME_HOST = (
    "modprobe nvme-tcp && nvme connect -t tcp -a {address} -s 4420 -n swap -i 1 && "
    "n=0; while [ ! -b /dev/nvme0n1 ] && [ $n -lt 100 ]; do n=$((n + 1)); sleep 0.1; done; "
    + _SWAPON.format("/dev/nvme0n1")
)
_TRANSPORTS = {BackEnd.TCP: "tcp", BackEnd.CLEAR: "tcp clear", BackEnd.RXE: "rdma", BackEnd.SLOW: "tcp"}


def set_up(back_end: BackEnd, borrower: Guest, donor: Guest) -> int:
    """Makes it the borrower's only swap; the process id of what serves it on the donor, 0 where there is none.

    Raises:
        HarnessError: A command failed; says which, and what it said.
    """
    address = donor.address
    if back_end not in _TRANSPORTS:
        cluster = READAHEAD if back_end is BackEnd.AHEAD else PAGE_CLUSTER
        borrower.run(f"echo {cluster} >/proc/sys/vm/page-cluster")
    match back_end:
        case BackEnd.DISK:
            # Written whole: the emulator's disk file is to have all of it before it is timed.
            make = f"dd if=/dev/zero of=/swap bs=1M count={SWAP_MIB} status=none && chmod 600 /swap && sync"
            borrower.run(f"{make} && {_SWAPON.format('/swap')}", limit_s=START_S)
            return 0
        case BackEnd.NBDKIT | BackEnd.AHEAD:
            pid = int(donor.run(_NBDKIT.format(address=address, mib=SWAP_MIB), limit_s=START_S))
            borrower.run(_NBD_CLIENT.format(address=address), limit_s=START_S)
            return pid
        case BackEnd.NVME:
            donor.run(_NVME_TARGET.format(address=address, kib=SWAP_MIB << 10), limit_s=START_S)
            borrower.run(_NVME_HOST.format(address=address), limit_s=START_S)
            return 0
        case BackEnd.TCP | BackEnd.CLEAR | BackEnd.RXE | BackEnd.SLOW:
            return farside(borrower, donor, f"borrow {{}} {{}} {{}} {_TRANSPORTS[back_end]}")


def farside(borrower: Guest, donor: Guest, verb: str, *, donors: int = 1, memory_mib: int = 0) -> int:
    """Starts donors and what borrows from them (benchmarks/apps/plane.py); the first donor's process id."""
    key = secrets.token_hex(32)
    lend = f"({MODULE}.plane lend {key} {donor.address} {donors} {memory_mib}) 2>/root/lend.err"
    pid = donor.run(f"{lend} || {{ tail -3 /root/lend.err >&2; exit 1; }}", limit_s=START_S)
    said = f"({MODULE}.plane {verb.format(key, donor.address, donors)}) 2>/root/borrow.err"
    borrower.run(f"{said} || {{ tail -3 /root/borrow.err >&2; exit 1; }}", limit_s=START_S)
    return int(pid.split()[-1])


def throttle(guest: Guest, *, is_on: bool) -> None:
    """Makes the guest's disk as slow as a hard disk, or as fast as the host lets it be."""
    iops, rate = (DISK_IOPS, DISK_BYTES_PER_S) if is_on else (0, 0)
    limits = {"bps": rate, "bps_rd": 0, "bps_wr": 0, "iops": iops, "iops_rd": 0, "iops_wr": 0}
    guest.emulator.execute("block_set_io_throttle", device="root", **limits)
