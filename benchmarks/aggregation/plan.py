"""What is exchanged, by whom, and what is to be reached. PURE."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.aggregation.models import FLOAT_BYTES, MIB, alexnet, bert_base

SIZES = {"4 KB": 4 << 10, "64 KB": 64 << 10, "1 MB": MIB, "16 MB": 16 * MIB, "100 MB": 100 * MIB}
BERT, ALEXNET = "BERT-base", "AlexNet"
REGISTERED, PRIVATE, TCP, GLOO, PS_LITE = "shm registered", "shm private", "tcp", "gloo", "ps-lite"
OURS = (REGISTERED, PRIVATE, TCP)
KINDS = {REGISTERED: "shm", PRIVATE: "private", TCP: "tcp"}
# What two systems cost does not tell which is faster by much where others have this share of the machine.
BUSY_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tensors of float32 that are exchanged in one iteration; ``counts``: elements of each."""

    name: str
    counts: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes that each member pushes."""
        return FLOAT_BYTES * sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What ours is to reach beside a peer.

    ``speed``: how many times as fast, at least. ``cpu``: how much of its CPU time a byte, at most; where the project
    has set none, it is the inverse of ``speed``.
    """

    ours: str
    peer: str
    workload: str
    speed: float
    cpu_bar: float | None = None

    @property
    def cpu(self) -> float:
        """At most so many times the peer's CPU time."""
        return 1 / self.speed if self.cpu_bar is None else self.cpu_bar


def _bars(ours: str, peer: str, speeds: dict[str, float], cpus: dict[str, float] | None = None) -> list[Bar]:
    known = cpus or {}
    return [
        Bar(ours=ours, peer=peer, workload=name, speed=speed, cpu_bar=known.get(name)) for name, speed in speeds.items()
    ]


LARGE = ("1 MB", "16 MB", "100 MB")
BARS: Sequence[Bar] = (
    *_bars(REGISTERED, GLOO, dict.fromkeys(LARGE, 4.0), dict.fromkeys(LARGE, 0.8)),
    *_bars(REGISTERED, PS_LITE, {"4 KB": 5.0, **dict.fromkeys(LARGE, 8.0)}),
    *_bars(PRIVATE, GLOO, dict.fromkeys(LARGE, 1.0)),
    *_bars(PRIVATE, PS_LITE, dict.fromkeys(LARGE, 3.0)),
    *_bars(
        TCP, PS_LITE, {"4 KB": 3.0, "64 KB": 3.0, "1 MB": 1.0, "16 MB": 1.2, "100 MB": 2.0},
        dict.fromkeys(("64 KB", *LARGE), 0.9),
    ),
    *_bars(TCP, GLOO, {"16 MB": 0.4, "100 MB": 0.4}, {"16 MB": 2.5, "100 MB": 2.5}),
    *_bars(TCP, PS_LITE, {BERT: 1.3}),
    *_bars(REGISTERED, GLOO, {BERT: 2.0}),
)  # fmt: skip
ROUND_TRIP_US = 70.0


def sized(name: str) -> Workload:
    """One tensor of a size of `SIZES`."""
    return Workload(name=name, counts=(SIZES[name] // FLOAT_BYTES,))


def workloads(*, is_quick: bool) -> list[Workload]:
    """All that is exchanged; quick: what takes no time."""
    if is_quick:
        return [sized(name) for name in ("4 KB", "64 KB", "1 MB")]
    return [*(sized(name) for name in SIZES), Workload(name=BERT, counts=bert_base())]


def trained() -> dict[str, tuple[Workload, float]]:
    """Models of the timer jobs, with seconds of an iteration without any exchange."""
    return {
        ALEXNET: (Workload(name=ALEXNET, counts=alexnet()), 0.125),
        BERT: (Workload(name=BERT, counts=bert_base()), 0.4),
    }


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The names in another order each turn, so that a drift of the machine meets all of them."""
    at = turn % len(names) if names else 0
    turned = [*names[at:], *names[:at]]
    return turned if turn // max(1, len(names)) % 2 == 0 else turned[::-1]
