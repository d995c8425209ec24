"""Sizes, costs and earnings of lent and borrowed memory: arithmetic only. [infiniswap §2.7.6]

The paper's cost model takes an RDMA cluster as given, so that what is paid for is the power of its network: each
machine's adapter and its share of a switch, times the PUE, once by the kilowatt hour and once as the datacenter's cost
for each watt. With Table 2.2 that is $1.45 a machine and month, as the paper says, if the switch has 36 ports: the
table gives its 231 W and not its ports, so they were chosen by that figure. What it earns is the price of memory that
nobody used before.
"""

import math
from dataclasses import dataclass

from farside.units import MIB

HOURS_PER_MONTH = 730.0
HEADROOM_SHARE = 1 / 8
"""Of a donor's memory, never lent where nothing else is set."""
# A guarded server's resident memory, measured with 1, 2 and 4 workers, 16 and 64 MiB of pending_bytes, 64 MiB and 4 GiB
# of device: it is this within 1 %. docs/operating.md says the same.
PROCESS_BYTES = 50 * MIB
ENGINE_BYTES_PER_WORKER = 27 * MIB
PENDING_OVERHEAD = 1.07  # what is kept about pages that wait for the disk
STATE_BYTES_PER_PAGE = 16
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Table 2.2, in dollars and watts; the switch's ports are ours to name. [infiniswap §2.7.6]"""

    opex_per_watt_month: float = 0.04
    electricity_per_kwh: float = 0.067
    nic_watts: float = 8.41
    switch_watts: float = 231.0
    switch_ports: int = 36
    power_usage_effectiveness: float = 1.1

    @property
    def watts(self) -> float:
        """Power of one machine's part of the network, cooling included."""
        return (self.nic_watts + self.switch_watts / self.switch_ports) * self.power_usage_effectiveness

    @property
    def cost_per_month(self) -> float:
        """Dollars a machine."""
        electricity = self.watts * HOURS_PER_MONTH / 1000 * self.electricity_per_kwh
        return self.watts * self.opex_per_watt_month + electricity


@dataclass(frozen=True, slots=True, kw_only=True)
class Benefit:
    """Dollars a machine and month: what lending earns, what it costs, and the growth of what memory earns."""

    earned: float
    cost: float
    growth: float


def benefit(
    model: CostModel, *, memory_bytes: int, lent_share: float, price_per_gib_month: float, discount: float = 0.0
) -> Benefit:
    """What lending ``lent_share`` of a machine's memory is worth, beside the rest, which is let at its full price.

    ``discount``: how much less lent memory is worth, 0.0 where nobody notices that it is remote ("regular pricing"),
    otherwise a preemptible machine's. The growth is 0.0 where nothing else is let.
    """
    whole = memory_bytes / (1 << 30) * price_per_gib_month
    let = whole * (1 - lent_share)
    earned = whole * lent_share * (1 - discount)
    cost = model.cost_per_month
    return Benefit(earned=earned, cost=cost, growth=(earned - cost) / let if let > 0 else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorSize:
    """What a machine can lend."""

    memory_bytes: int
    used_bytes: int
    headroom_bytes: int
    slabs: int
    slab_bytes: int

    @property
    def lent_bytes(self) -> int:
        """All its slabs."""
        return self.slabs * self.slab_bytes


def donor_size(*, memory_bytes: int, used_bytes: int, slab_bytes: int, headroom_bytes: int = 0) -> DonorSize:
    """What a donor lends whose own programs use ``used_bytes`` at their peak.

    ``headroom_bytes`` 0: an eighth of memory.
    """
    headroom = headroom_bytes or int(memory_bytes * HEADROOM_SHARE)
    # One slab more must be free before another is made (headroom_hysteresis_bytes).
    spare = memory_bytes - used_bytes - headroom - slab_bytes
    return DonorSize(
        memory_bytes=memory_bytes,
        used_bytes=used_bytes,
        headroom_bytes=headroom,
        slabs=max(0, spare // slab_bytes),
        slab_bytes=slab_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowerSize:
    """What a device of that size takes.

    Attributes:
        donors: Machines that hold all of it, and all of it still when one of them dies; 0 when none can lend.
        disk_bytes: Backup disk; 0: none.
        disk_write_bytes_per_s: What that disk must bear.
        locked_bytes: Memory of the server process that is never swapped, once it is guarded.
    """

    size_bytes: int
    remote_bytes: int
    donors: int
    disk_bytes: int
    disk_write_bytes_per_s: float
    locked_bytes: int


def borrower_size(
    *,
    size_bytes: int,
    replicas: int,
    has_disk: bool,
    pages_out_per_s: float,
    donor: DonorSize,
    workers: int,
    pending_bytes: int,
) -> BorrowerSize:
    """What a device needs that keeps each page at ``replicas`` donors, and on a backup disk if there is one.

    ``pages_out_per_s``: page-outs at the busiest (`sar -W`, pswpout/s): each goes to the disk as well.
    """
    remote = size_bytes * replicas
    donors = math.ceil(remote / donor.lent_bytes) + 1 if donor.lent_bytes else 0
    return BorrowerSize(
        size_bytes=size_bytes,
        remote_bytes=remote,
        donors=max(donors, replicas + 1) if donors else 0,
        disk_bytes=size_bytes if has_disk else 0,
        disk_write_bytes_per_s=pages_out_per_s * PAGE_BYTES if has_disk else 0.0,
        locked_bytes=PROCESS_BYTES
        + workers * (int(pending_bytes * PENDING_OVERHEAD) + ENGINE_BYTES_PER_WORKER)
        + size_bytes // PAGE_BYTES * STATE_BYTES_PER_PAGE,
    )
