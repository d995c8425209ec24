"""Two guests for one task: a borrower with the workloads in it, and a donor."""

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.apps.back_end import MODULE, throttle
from benchmarks.apps.mix import MIXES, packed, script
from benchmarks.apps.result import Workload
from benchmarks.apps.size import CONNECTIONS, GUEST_MIB
from benchmarks.apps.talk import Talk
from benchmarks.load import build_program
from tests.vm.harness.guest import Guest
from tests.vm.harness.network import Workshop, network

CACHE = "memcached -u root -l 127.0.0.1 -p 11211 -m 256 -t {threads} -o no_modern"
REQUESTS = 200_000  # of the script, which begins anew at its end
CGROUPS = "/sys/fs/cgroup"
START_S = 400.0
RECLAIM_S = 240.0
CACHES = {Workload.ETC: "etc", Workload.SYS: "sys"}
# How much of a program lies in huge pages depends on when the kernel's collector came by, and what lies in them is not
# swapped out page by page.
_SMALL_PAGES = "echo never >/sys/kernel/mm/transparent_hugepage/enabled"
_MODULES = {Workload.ORDERS: "transactions", Workload.PAGERANK: "page_rank"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The guests, ready for a task."""

    borrower: Guest
    donor: Guest


@contextmanager
def stage(shop: Workshop, workloads: Sequence[Workload], *, caches_at: int = 1) -> Iterator[Stage]:
    """Two woken guests; the scripts of the caches among ``workloads`` lie in guest ``caches_at``."""
    with network(shop, 2, memory_mib=GUEST_MIB) as guests:
        for number in (1, 2):
            guests[number].run(_SMALL_PAGES)
        _bring(guests[caches_at], workloads)
        talk = Talk(guests[caches_at], f"{MODULE}.pin $(command -v memcached) 2>/root/pin.err")
        try:
            talk.hear(START_S)
            yield Stage(borrower=guests[1], donor=guests[2])
        finally:
            talk.close()


def _bring(guest: Guest, workloads: Sequence[Workload]) -> None:
    guest.put(build_program("apps/cache_load"), "/root/cache_load")
    with tempfile.TemporaryDirectory() as folder:
        for workload in workloads:
            if workload in CACHES:
                path = Path(folder, "script")
                mix = MIXES[CACHES[workload]]
                path.write_bytes(packed(script(mix, random.Random(1), request_count=REQUESTS)))
                guest.put(path, f"/root/{workload}.script")


class Worker:
    """A running workload in a cgroup of its own."""

    def __init__(self, guest: Guest, workload: Workload, *, group: str = "", stores: bool = True) -> None:
        """``group`` is a cgroup that is there; ``stores``: a cache is full before it is measured."""
        self._guest = guest
        self._group = f"{CGROUPS}/{group or workload}"
        guest.run(f"echo +memory >{CGROUPS}/cgroup.subtree_control; mkdir -p {self._group}")
        # 0 is who writes, also in a subshell.
        enter = f"echo 0 >{self._group}/cgroup.procs"
        if workload in CACHES:
            cache = CACHE.format(threads=CONNECTIONS)
            guest.run(f"({enter}; exec {cache}) >/root/cache.log 2>&1 </dev/null & echo $! >/run/cache.pid")
            wait = "n=0; until grep -q :2BCB /proc/net/tcp || [ $n = 300 ]; do n=$((n + 1)); sleep 0.1; done"
            guest.run(wait)
            empty = "" if stores else " empty"
            command = f"exec /root/cache_load 11211 /root/{workload}.script {CONNECTIONS}{empty}"
        else:
            command = f"{enter}; {MODULE}.{_MODULES[workload]}"
        self.talk = Talk(guest, f"({command}) 2>/root/worker.err")
        self.talk.hear(START_S)

    def memory_bytes(self) -> int:
        """What is charged to its cgroup now."""
        return int(self._guest.run(f"cat {self._group}/memory.current"))

    def limit(self, limit_bytes: int) -> None:
        """Takes its memory down to that. By memory.high first: memory.max would kill where the disk is slow."""
        down = (
            f"cd {self._group}; until echo {limit_bytes} >memory.high; "
            f"[ $(cat memory.current) -le {limit_bytes} ]; do sleep 0.2; done; "
            f"echo {limit_bytes} >memory.max; echo max >memory.high"
        )
        self._guest.run(down, limit_s=RECLAIM_S)

    def trouble(self) -> str:
        """What the kernel or the program said, where it ended by itself."""
        kills = self._guest.run(f"grep -c '^oom_kill [1-9]' {self._group}/memory.events || true").strip()
        said = self._guest.run("tail -n 1 /root/worker.err").strip()
        return "the kernel killed it: out of memory" if kills == "1" else said

    def close(self) -> None:
        """Ends it, and lets its memory go."""
        throttle(self._guest, is_on=False)
        self.talk.close()
        self._guest.run(f"echo 1 >{self._group}/cgroup.kill", limit_s=START_S)
        gone = f"until ! grep -q 'populated 1' {self._group}/cgroup.events; do sleep 0.2; done; rmdir {self._group}"
        self._guest.run(gone, limit_s=START_S)
