"""Who uses how much memory in a simulated cluster, second by second: pure, and all of it a generator of ours.

Two clusters. ``ContainerLoad`` is the paper's 32-machine experiment: containers of five applications with the working
sets that the text names, at 100, 75 and 50 % of them, placed at random, growing as Figure 2.11 describes.
``SkewedLoad`` has the imbalance of Figure 2.2, whose traces are not public: log-normal usage with the ratio of the 99th
percentile to the median that the paper reports, drifting slowly. [infiniswap §2.2.3, §2.7.1, §2.7.5]
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist
from typing import Protocol

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    """What one machine's own programs hold at one moment: in its memory, and paged out of it."""

    local_bytes: int
    paged_bytes: int


class Load(Protocol):
    """A cluster's demand over time."""

    @property
    def machines(self) -> int:
        """How many machines there are."""
        ...

    def at(self, now_s: float) -> tuple[MachineLoad, ...]:
        """Every machine's load at that moment; moments are asked for in rising order."""
        ...


class Growth(Enum):
    """How a working set grows over a run. [infiniswap §2.7.1, Figure 2.11]"""

    EARLY = 0.15  # "plateaus early": full after this share of the run
    GRADUAL = 0.40  # "increased gradually before plateauing"
    STEADY = 1.0  # "keeps increasing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application of the paper's experiment: its whole working set, and how it gets there."""

    name: str
    working_set_gib: float
    growth: Growth


# Working sets: §2.7.3.1 (11.5 GB), §2.7.3.2 (9 and 14.5 GB), §2.7.3.3 (9 GB), §2.7.3.4 (12 GB heap).
APPLICATIONS = (
    Application(name="VoltDB TPC-C", working_set_gib=11.5, growth=Growth.GRADUAL),
    Application(name="Memcached ETC", working_set_gib=9.0, growth=Growth.EARLY),
    Application(name="Memcached SYS", working_set_gib=14.5, growth=Growth.STEADY),
    Application(name="PowerGraph", working_set_gib=9.0, growth=Growth.GRADUAL),
    Application(name="GraphX", working_set_gib=12.0, growth=Growth.GRADUAL),
)
CONFIGURATIONS = ((1.0, 0.5), (0.75, 0.3), (0.5, 0.2))  # share of the working set that fits: share of the containers
SYSTEM_GIB = 2.6  # a machine with no container: the least used one in Figure 2.18b, at a 22.5th of the most used
PAPER_MACHINES, PAPER_CONTAINERS = 32, 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container: what runs in it, how much of that may stay in local memory, and where it is."""

    application: Application
    memory_share: float
    machine: int

    def load(self, progress: float) -> tuple[float, float]:
        """GiB in local memory and GiB paged out at this share of the run (0 to 1)."""
        size = self.application.working_set_gib
        demand = size * min(1.0, max(0.0, progress) / self.application.growth.value)
        local = min(demand, size * self.memory_share)
        return local, demand - local


def place_containers(machines: int, total_gib: float, rng: random.Random) -> tuple[Container, ...]:
    """About 90 containers for every 32 machines, equal numbers of each application, each on a random machine.

    A machine takes no container whose memory limit it could not hold beside those that it has. [infiniswap §2.7.5]
    """
    count = round(machines * PAPER_CONTAINERS / PAPER_MACHINES)
    shares = [share for share, part in CONFIGURATIONS for _ in range(round(part * count))]
    shares += [CONFIGURATIONS[0][0]] * (count - len(shares))
    rng.shuffle(shares)
    free = [total_gib - SYSTEM_GIB] * machines
    placed = []
    for number, share in enumerate(shares[:count]):
        application = APPLICATIONS[number % len(APPLICATIONS)]
        limit = application.working_set_gib * share
        roomy = [m for m in range(machines) if free[m] >= limit]
        machine = rng.choice(roomy)
        free[machine] -= limit
        placed.append(Container(application=application, memory_share=share, machine=machine))
    return tuple(placed)


class ContainerLoad:
    """The paper's containers, all started at time zero and run for ``run_s``. [infiniswap §2.7.5]"""

    def __init__(self, *, machines: int, total_gib: float, run_s: float, rng: random.Random) -> None:
        self._machines = machines
        self._run_s = run_s
        self.containers = place_containers(machines, total_gib, rng)

    @property
    def machines(self) -> int:
        """How many machines there are."""
        return self._machines

    def at(self, now_s: float) -> tuple[MachineLoad, ...]:
        """Every machine's load: its own system's memory and its containers'."""
        local = [SYSTEM_GIB] * self._machines
        paged = [0.0] * self._machines
        for container in self.containers:
            inside, outside = container.load(now_s / self._run_s)
            local[container.machine] += inside
            paged[container.machine] += outside
        return _machine_loads(local, paged)


FACEBOOK_P99_TO_MEDIAN = 2.4  # [infiniswap Figure 2.2]
GOOGLE_P99_TO_MEDIAN = 3.35
PEAK_SHARE = 0.92  # the busiest machine's share of its memory, as the maximum in Figure 2.18b
# Of each working set, what the mix of 100, 75 and 50 % configurations leaves outside, per byte inside. [§2.7.5]
PAGED_PER_LOCAL = sum((1 - share) * part for share, part in CONFIGURATIONS) / sum(
    share * part for share, part in CONFIGURATIONS
)
DRIFT_S = 1000.0  # usage stays within 10 % for 40 s with probability of about 0.9, as for most machines in §2.2.3


class SkewedLoad:
    """Machines whose usage has a given 99th percentile over median, each drifting by itself. [infiniswap §2.2.3]

    Usage is log-normal; the starting values are evenly spread quantiles, shuffled, so that a small cluster has the
    ratio too. Paged-out memory follows local usage in the proportion of the paper's container mix.
    """

    def __init__(self, *, machines: int, total_gib: float, p99_to_median: float, rng: random.Random) -> None:
        normal = NormalDist()
        self._rng = rng
        self._sigma = math.log(p99_to_median) / normal.inv_cdf(0.99)
        self._median_gib = total_gib * PEAK_SHARE / p99_to_median
        self._most_gib = total_gib * PEAK_SHARE
        self._z = [normal.inv_cdf((m + 0.5) / machines) for m in range(machines)]
        rng.shuffle(self._z)
        self._last_s = 0.0

    @property
    def machines(self) -> int:
        """How many machines there are."""
        return len(self._z)

    def at(self, now_s: float) -> tuple[MachineLoad, ...]:
        """Every machine's load; the drift since the last call is an AR(1) step of that length."""
        keep = math.exp(-(now_s - self._last_s) / DRIFT_S)
        jitter = math.sqrt(1 - keep * keep)
        self._last_s = now_s
        self._z = [keep * z + jitter * self._rng.gauss(0, 1) for z in self._z]
        local = [min(self._most_gib, self._median_gib * math.exp(self._sigma * z)) for z in self._z]
        return _machine_loads(local, [gib * PAGED_PER_LOCAL for gib in local])


def _machine_loads(local_gib: Sequence[float], paged_gib: Sequence[float]) -> tuple[MachineLoad, ...]:
    pairs = zip(local_gib, paged_gib, strict=True)
    return tuple(MachineLoad(local_bytes=int(i * GIB), paged_bytes=int(o * GIB)) for i, o in pairs)
