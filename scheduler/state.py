"""State of a cluster and its jobs as the scheduler sees it: frozen, PURE, same in simulation and live.

A job is a gang: all of its GPUs or none. Times are seconds on one time line of the caller's choice (a trace's own, or
the epoch), sizes are bytes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

# So many nodes or features are named in a line.
NAMED = 8

# (index of the node in its domain, devices there), in the order of the nodes. A device is a whole GPU, or a part of one
# that its driver names: devices are counted here, and never divided.
Allocation = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine. An infinite amount is not counted in placement.

    ``swap_bytes``: in other nodes' memory. ``lends_bytes``: what its donor lends to other nodes. ``users``: whose jobs
    may run there; empty: everybody's. ``features``: what it is said to have besides, for jobs that ask for that.
    """

    name: str
    gpus: int
    cpus: float = math.inf
    memory_bytes: float = math.inf
    swap_bytes: float = 0.0
    lends_bytes: float = 0.0
    gpu_model: str = ""
    rack: str = ""
    rdma_domain: str = ""
    users: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCluster:
    """Virtual cluster: a tenant's own nodes.

    ``lend_grace_s``: jobs of others that leave within this time may run on them while they idle; 0: none.
    """

    name: str
    nodes: tuple[Node, ...]
    lend_grace_s: float = math.inf

    @property
    def gpus(self) -> int:
        """All GPUs of its nodes."""
        return sum(node.gpus for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Resize of a virtual cluster: from ``at_s`` on it has these nodes."""

    at_s: float
    vc: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All virtual clusters. A cluster without virtual clusters has one with an empty name."""

    virtual_clusters: tuple[VirtualCluster, ...]

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(vc.gpus for vc in self.virtual_clusters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The nodes that will do for a job: of ``nodes`` (empty: of all), with all of ``features``.

    None of ``exclude``: names of nodes, and features that a node may not have.
    """

    nodes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether it leaves any out."""
        return bool(self.nodes or self.exclude or self.features)

    def takes(self, node: str, features: Collection[str]) -> bool:
        """Whether a node of this name, with these features, will do."""
        if node in self.exclude or (self.nodes and node not in self.nodes):
            return False
        if any(feature in self.exclude for feature in features):
            return False
        return all(feature in features for feature in self.features)

    @property
    def words(self) -> str:
        """``with ib, among n1, n2, without n3``; empty: any node will do."""
        parts = (("with", self.features), ("among", self.nodes), ("without", self.exclude))
        return ", ".join(f"{word} {_shortened(names)}" for word, names in parts if names)


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


ANY_NODE = Choice()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job, as known at submission.

    ``sequence`` breaks ties between jobs submitted in the same second; it is unique. ``skew`` is S_J, the share of the
    largest tensor in the model [tiresias §3.3.3.1]; 0 where nobody has measured it. ``account`` and ``qos`` are names
    (tenancy.py), empty where it has none. ``runs_as``: whose job it is to nodes that run some users' only; empty where
    no node does, so that all users' demands are alike. ``grace_s``: how long it may take to leave its GPUs.
    """

    job_id: str
    sequence: int
    submit_s: float
    gpus: int
    vc: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    name: str = ""
    parameter_servers: int = 0
    cpus_per_gpu: float = 0.0
    memory_bytes_per_gpu: float = 0.0
    swap_bytes_per_gpu: float = 0.0
    gpu_model: str = ""
    runs_as: str = ""
    choice: Choice = ANY_NODE
    model: str = ""
    model_bytes: int = 0
    skew: float = 0.0
    preemptible: bool = True
    grace_s: float = 0.0
    limit_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand of a job for resources. Jobs of equal demand are interchangeable: if one has no room, none has."""

    gpus: int
    cpus_per_gpu: float = 0.0
    memory_bytes_per_gpu: float = 0.0
    swap_bytes_per_gpu: float = 0.0
    gpu_model: str = ""
    runs_as: str = ""
    choice: Choice = ANY_NODE
    parameter_servers: int = 0
    model_bytes: int = 0
    skew: float = 0.0
    is_consolidated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """GPUs held for a waiting job, and when the job is expected to have all of them; infinite if unknown.

    ``awaited``: the rows of who is to leave it their GPUs, and since when they held them.
    """

    row: int
    allocation: Allocation
    at_s: float
    awaited: Mapping[int, float] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Give a job these GPUs, of the virtual cluster ``host``. ``delay_s`` passes before it makes progress."""

    row: int
    allocation: Allocation = field(repr=False)
    reason: str
    host: str = ""
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """Take a running job's GPUs away, for the job ``winner``."""

    row: int
    winner: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Put a starving job back into the first queue, its figures at zero. [tiresias §3.3.2.3]"""

    row: int
    reason: str


Action = Start | Preempt | Promote
