"""Which lines of a kernel log fail a run."""

import pytest

from tests.vm.harness.kernel_log import faults

QUIET = """\
[    0.000000] Linux version 6.1.0-56-amd64 (debian-kernel@lists.debian.org)
[    0.184000] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on
[    2.312000] EXT4-fs (vda): mounted filesystem without journal. Quota mode: none.
[    9.000100] systemd[1]: WARNING: something that a program says
[   12.100000] block nbd0: Receive control failed (result -32)
[   12.200000] I/O error, dev nbd0, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2
[   30.000000] Out of memory: Killed process 321 (hog) total-vm:81920kB
[  123.631284] clocksource: Long readout interval, skipping watchdog check: cs_nsec: 1094464326
"""


def test_a_quiet_kernel_has_no_faults() -> None:
    assert faults(QUIET) == ()


@pytest.mark.parametrize(
    "line",
    [
        "[   41.100000] BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "[   41.100000] kernel BUG at mm/swapfile.c:1234!",
        "[   41.100000] Oops: 0000 [#1] PREEMPT SMP NOPTI",
        "[   41.100000] WARNING: CPU: 0 PID: 412 at drivers/block/nbd.c:1020 nbd_config_put+0x1/0x2 [nbd]",
        "[   41.100000] INFO: task kswapd0:41 blocked for more than 120 seconds.",
        "[   41.100000] WARNING: possible circular locking dependency detected",
        "[   41.100000] watchdog: BUG: soft lockup - CPU#0 stuck for 134s! [fio:501]",
        "[   41.100000] WARNING: suspicious RCU usage",
        "[   41.100000] general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
        "[   41.100000] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000007",
        "[   41.100000] BUG: Bad page state in process hog  pfn:1234",
        "[   41.100000] list_add corruption. prev->next should be next",
        "[   41.100000] unregister_netdevice: waiting for eth1 to become free. Usage count = 2",
        "WARNING: CPU: 0 PID: 1 at kernel/a.c:1 without a time stamp",
        "<4>[   41.100000] WARNING: CPU: 0 PID: 1 at kernel/a.c:1 with a level",
    ],
)
def test_a_planted_fault_is_found(line: str) -> None:
    assert faults(f"{QUIET}{line}\n{QUIET}") == (line,)


def test_a_fault_that_is_said_twice_counts_once() -> None:
    line = "[   41.100000] BUG: unable to handle page fault\n"

    assert len(faults(line * 2)) == 1
