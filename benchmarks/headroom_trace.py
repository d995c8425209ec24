"""Figure 2.17: a donor that hosts many slabs while a local Memcached grows, second by second. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.cluster_load import GIB
from benchmarks.cluster_memory import Donor
from benchmarks.figure import Figure, Table, curve
from farside.daemon.headroom import HeadroomParams
from farside.daemon.slab.eviction import candidates, choose

TOTAL_BYTES = 64 * GIB
HEADROOM_BYTES = GIB  # "we set HeadRoom to be 1 GB"
SYSTEM_BYTES = 2 * GIB
ETC_BYTES = 9 * GIB  # [infiniswap §2.7.3.2]
PAUSE_FROM_S, PAUSE_TO_S, RUN_S = (
    120,
    180,
    300,
)  # "after 120 seconds, when Memcached stopped allocating ... for a while"
PAUSE_AT_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of the trace."""

    now_s: int
    local_bytes: int
    slabs_bytes: int
    recalled: int

    @property
    def free_bytes(self) -> int:
        """What is left of the machine's memory."""
        return TOTAL_BYTES - self.local_bytes - self.slabs_bytes


def memcached_bytes(now_s: float) -> int:
    """Local memory use: a system, and a Memcached that grows, pauses, and grows again."""
    if now_s < PAUSE_FROM_S:
        share = PAUSE_AT_SHARE * now_s / PAUSE_FROM_S
    elif now_s < PAUSE_TO_S:
        share = PAUSE_AT_SHARE
    else:
        share = min(1.0, PAUSE_AT_SHARE + (1 - PAUSE_AT_SHARE) * (now_s - PAUSE_TO_S) / (RUN_S - PAUSE_TO_S))
    return SYSTEM_BYTES + int(ETC_BYTES * share)


def trace(slab_bytes: int) -> Iterator[Second]:
    """The donor's seconds: it starts with all the slabs that memory bears, and recalls are done within a second."""
    params = HeadroomParams(
        slab_bytes=slab_bytes, headroom_bytes=HEADROOM_BYTES, hysteresis_bytes=slab_bytes, preallocate_slabs=2
    )
    donor = Donor(params, TOTAL_BYTES)
    for slab in range((TOTAL_BYTES - HEADROOM_BYTES - SYSTEM_BYTES) // slab_bytes):
        donor.lend(slab, 0.0)
    rng = random.Random(1)
    for now_s in range(RUN_S):
        donor.measure(memcached_bytes(now_s))
        recall = donor.decide()
        count = recall.count if recall else 0
        asked = candidates(tuple(donor.mapped.values()), count=count, extra=-1, rng=rng)
        for victim in choose(asked, {slab.lease: rng.random() for slab in asked}, count=count):
            del donor.mapped[victim.lease]
        held = (len(donor.mapped) + donor.unmapped) * slab_bytes
        yield Second(now_s=now_s, local_bytes=donor.local_bytes, slabs_bytes=held, recalled=count)


def figure() -> Figure:
    """The trace with the paper's 1 GiB slabs as a picture, and how HeadRoom held with these and with ours."""
    paper = tuple(trace(GIB))
    tables = (_trace_table(paper), _kept_table({"1 GiB": paper, "64 MiB": tuple(trace(GIB // 16))}))
    every = paper[::5]
    top = 12.0
    series = [
        ("memcached", [second.local_bytes / GIB for second in every]),
        ("free", [second.free_bytes / GIB for second in every]),
        ("given back", [(paper[0].slabs_bytes - second.slabs_bytes) / GIB for second in every]),
    ]
    return Figure(
        key="headroom-trace",
        title="A donor retreats before its own Memcached",
        source="infiniswap Figure 2.17, §2.7.4.2",
        tables=tables,
        picture="GiB over 300 s: m Memcached and system, f free, g given back by slabs (* two of them)\n"
        + curve(series, top=top),
        notes=(
            "The paper's figure has no numbers. What it shows holds here: free memory stays near HeadRoom, recalls "
            "stop while Memcached pauses (120 s to 180 s) and go on when it grows again.",
            "Free memory dips under HeadRoom by what Memcached takes while the average (beta 0.2) and one recall lag "
            "behind it; it is never exhausted.",
            "Recalls here are done in the second they are asked for; how long one takes is in docs/benchmarks.md.",
        ),
    )


def _trace_table(seconds: tuple[Second, ...]) -> Table:
    rows = tuple(
        (
            f"{s.now_s} s",
            f"{s.local_bytes / GIB:.1f}",
            f"{s.slabs_bytes / GIB:.0f}",
            f"{s.free_bytes / GIB:.2f}",
            str(sum(t.recalled for t in seconds[: s.now_s + 1])),
        )
        for s in (*seconds[::30], seconds[-1])
    )
    header = ("at", "local GiB", "slabs GiB", "free GiB", "recalled so far")
    return Table(caption="1 GiB slabs, HeadRoom 1 GiB of 64", header=header, rows=rows)


def _kept_table(traces: dict[str, tuple[Second, ...]]) -> Table:
    rows = tuple(
        (
            name,
            f"{min(s.free_bytes for s in seconds) / GIB:.2f}",
            f"{sum(s.free_bytes >= HEADROOM_BYTES for s in seconds) / len(seconds):.0%}",
            str(sum(s.recalled for s in seconds)),
            str(sum(s.recalled for s in seconds if PAUSE_FROM_S + 30 <= s.now_s < PAUSE_TO_S)),
        )
        for name, seconds in traces.items()
    )
    header = ("slabs of", "least free GiB", "seconds with HeadRoom whole", "recalled", "in the pause's second half")
    return Table(caption="HeadRoom kept", header=header, rows=rows)
