"""What the paper says of its applications, as numbers of its prose: pure. [infiniswap §2.7.3, §2.7.4]"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.apps.result import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A number of the paper's and where it stands."""

    value: float
    place: str


# How many times slower at 50 % than at 100 %. None: it did not complete.
SLOWER_AT_50: Mapping[Workload, Mapping[str, Quoted | None]] = {
    Workload.ETC: {
        "disk": Quoted(value=4, place="Figure 2.1b"),
        "nbdX": Quoted(value=1.3, place="Figure 2.14b"),
        "Infiniswap": Quoted(value=1.03, place="Figure 2.13b"),
    },
    Workload.SYS: {
        "disk": Quoted(value=17.4, place="Figure 2.1b"),
        "nbdX": Quoted(value=3, place="Figure 2.14b"),
        "Infiniswap": Quoted(value=1.3, place="Figure 2.13b"),
    },
    Workload.ORDERS: {
        "disk": Quoted(value=24, place="Figure 2.1a, VoltDB"),
        "nbdX": Quoted(value=1.5, place='Figure 2.14a, VoltDB: "similar" to Infiniswap'),
        "Infiniswap": Quoted(value=1.5, place="Figure 2.13a, VoltDB"),
    },
    Workload.PAGERANK: {
        "disk": Quoted(value=8, place="Figure 2.1c, PowerGraph"),
        "nbdX": None,
        "Infiniswap": Quoted(value=1.24, place="Figure 2.13c, PowerGraph"),
    },
}
# Infiniswap's throughput over that of the others at 50 %, and by how many times its 99th percentile is lower.
THROUGHPUT_GAIN: Mapping[tuple[Workload, str], float] = {
    (Workload.ETC, "disk"): 4.08,
    (Workload.SYS, "disk"): 15.1,
    (Workload.ORDERS, "disk"): 15.4,
    (Workload.PAGERANK, "disk"): 6.5,
    (Workload.ETC, "nbdX"): 1.24,
    (Workload.SYS, "nbdX"): 2.45,
}
P99_GAIN: Mapping[tuple[Workload, str], float] = {
    (Workload.ETC, "disk"): 36.3,
    (Workload.SYS, "disk"): 61.4,
    (Workload.ORDERS, "disk"): 19.7,
    (Workload.ETC, "nbdX"): 1.8,
    (Workload.SYS, "nbdX"): 2.29,
}
# Figure 2.16, in percent of VoltDB's throughput at 75 %; an eviction's is each one's.
LOSS_PCT: Mapping[str, float] = {"silent": 34.5, "busiest": 58.3, "evictions": 2.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of Table 2.1."""

    per_s: float
    p50_us: float
    p99_us: float


TABLE_2_1: Mapping[tuple[Workload, bool], Column] = {
    (Workload.ETC, False): Column(per_s=95_900, p50_us=152, p99_us=319),
    (Workload.ETC, True): Column(per_s=94_100, p50_us=152, p99_us=318),
    (Workload.SYS, False): Column(per_s=96_000, p50_us=152, p99_us=327),
    (Workload.SYS, True): Column(per_s=93_500, p50_us=156, p99_us=343),
}
