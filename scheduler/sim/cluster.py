"""Simulated cluster: nodes and virtual clusters, from an operator's description. PURE."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from farside.errors import ConfigError
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.settings import suggestion
from farside.scheduler.sim.closure import Closure
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster, Demand, Node, Resize, VirtualCluster
from farside.units import format_count

# Jobs of a cluster without virtual clusters belong to this one.
WHOLE = ""
# What lies above is a slip of the hand: the largest clusters there are have some hundred thousand GPUs.
MAX_NODES, MAX_CLUSTER_GPUS = 1_000_000, 10_000_000
# A node of which nothing is known: only its GPUs are counted, and no model.
PLAIN = Node(name="", gpus=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VcSize:
    """Size of a virtual cluster: this many GPUs from ``from_s`` on; minus infinity: from the beginning."""

    vc: str
    gpus: int
    from_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """Size of a cluster at the beginning of a time, and the bounds of its GPUs through all of it."""

    nodes: int
    gpus: int
    least_gpus: int
    most_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Site of a simulation: the cluster with all nodes that it ever has, its changes over time, and maintenance."""

    cluster: Cluster
    resizes: tuple[Resize, ...] = ()
    closures: tuple[Closure, ...] = ()

    def size(self, from_s: float, to_s: float) -> SizeRange:
        """How large it is from one time to another, both included."""
        has = {vc.name: vc.nodes for vc in self.cluster.virtual_clusters}
        has.update((one.vc, one.nodes) for one in self.resizes if one.at_s <= from_s)
        nodes, gpus = sum(map(len, has.values())), {name: _gpus(of) for name, of in has.items()}
        first = total = least = most = sum(gpus.values())
        later = [one for one in self.resizes if from_s < one.at_s <= to_s]
        for at, one in enumerate(later):
            total += _gpus(one.nodes) - gpus[one.vc]
            gpus[one.vc] = _gpus(one.nodes)
            if at + 1 == len(later) or later[at + 1].at_s > one.at_s:  # what changes at one instant counts together
                least, most = min(least, total), max(most, total)
        return SizeRange(nodes=nodes, gpus=first, least_gpus=least, most_gpus=most)


def _gpus(nodes: Iterable[Node]) -> int:
    return sum(node.gpus for node in nodes)


def equal_nodes(
    gpus: int, gpus_per_node: int, *, prefix: str = "n", like: Node = PLAIN, nodes_per_rack: int = 0
) -> tuple[Node, ...]:
    """Equal nodes with this many GPUs in total; the last one has the remainder.

    ``like``: what each has besides. ``nodes_per_rack``: so many stand under one switch; 0: all of them.
    """
    whole, rest = divmod(gpus, gpus_per_node)
    sizes = [gpus_per_node] * whole + ([rest] if rest else [])
    return tuple(
        replace(
            like, name=f"{prefix}{at}", gpus=size, rack=f"{prefix}r{at // nodes_per_rack}" if nodes_per_rack else ""
        )
        for at, size in enumerate(sizes)
    )


def build_site(
    *,
    gpus_per_node: int,
    nodes: int = 0,
    vc_sizes: Sequence[VcSize] = (),
    vcs: Sequence[str] = (),
    start_s: float = 0.0,
    like: Node = PLAIN,
    nodes_per_rack: int = 0,
) -> Site:
    """Build one pool of ``nodes``, or a virtual cluster for each in ``vc_sizes``.

    Args:
        gpus_per_node: GPUs of each node.
        nodes: Nodes of the pool, or of the only virtual cluster in ``vcs``; 0 where ``vc_sizes`` tells.
        vc_sizes: Sizes of virtual clusters, of each by time.
        vcs: Those to run; empty: all that ``vc_sizes`` names.
        start_s: When the first job comes: what a virtual cluster has by then it has from the beginning.
        like: What each node has besides: CPUs, memory, a model of GPU. Where nobody says which model, a job that asks
            for one has nowhere to go.
        nodes_per_rack: So many nodes of a virtual cluster stand under one switch; 0: all of them.

    Raises:
        ConfigError: What is said does not make a cluster.
    """
    if gpus_per_node < 1:
        raise ConfigError(f"--gpus-per-node is {gpus_per_node}", hint="at least 1")
    if nodes < 0:
        raise ConfigError(f"--nodes is {nodes}", hint="at least 1")
    if nodes and vc_sizes:
        raise ConfigError("--nodes and --vc-nodes exclude each other", hint="leave one of them out")
    if nodes:
        _check_size(nodes, nodes * gpus_per_node)
        if len(vcs) > 1:
            raise ConfigError("--nodes says nothing of several virtual clusters", hint="give --vc-nodes FILE")
        name = vcs[0] if vcs else WHOLE
        made = equal_nodes(nodes * gpus_per_node, gpus_per_node, like=like, nodes_per_rack=nodes_per_rack)
        return Site(cluster=Cluster(virtual_clusters=(VirtualCluster(name=name, nodes=made),)))
    if not vc_sizes:
        raise ConfigError("the number of nodes of the cluster is unknown", hint="give --nodes N or --vc-nodes FILE")
    sizes: dict[str, list[VcSize]] = {}
    for size in vc_sizes:
        sizes.setdefault(size.vc, []).append(size)
    for name in vcs:
        if name not in sizes:
            near = suggestion(name, sizes, "it has")
            raise ConfigError(f"--vc-nodes does not say how many nodes virtual cluster '{name}' has", hint=near)
    most = {name: max(size.gpus for size in sizes[name]) for name in vcs or sizes}
    _check_size(sum(-(-gpus // gpus_per_node) for gpus in most.values()), sum(most.values()))
    made_of = []
    for name, gpus in most.items():
        prefix = f"{name}-" if name else "n"
        all_nodes = equal_nodes(gpus, gpus_per_node, prefix=prefix, like=like, nodes_per_rack=nodes_per_rack)
        made_of.append(_resized(name, sizes[name], all_nodes, start_s))
    resizes = sorted((resize for _, found in made_of for resize in found), key=lambda resize: resize.at_s)
    return Site(cluster=Cluster(virtual_clusters=tuple(vc for vc, _ in made_of)), resizes=tuple(resizes))


def _check_size(nodes: int, gpus: int) -> None:
    if nodes > MAX_NODES or gpus > MAX_CLUSTER_GPUS:
        raise ConfigError(
            f"the cluster has {format_count(nodes, 'node')} with {format_count(gpus, 'GPU')}",
            hint=f"give at most {MAX_NODES:,} nodes and {MAX_CLUSTER_GPUS:,} GPUs",
        )


def _resized(
    name: str, sizes: Iterable[VcSize], nodes: tuple[Node, ...], start_s: float
) -> tuple[VirtualCluster, list[Resize]]:
    by_time = sorted(sizes, key=lambda size: size.from_s)
    first = max((at for at, size in enumerate(by_time) if size.from_s <= start_s), default=0)
    changes: list[Resize] = []
    has = sum(node.gpus for node in nodes)
    for at, size in enumerate(by_time[first:]):
        if size.gpus != has:
            changes.append(Resize(at_s=size.from_s if at else start_s, vc=name, nodes=_first(nodes, size.gpus)))
            has = size.gpus
    return VirtualCluster(name=name, nodes=nodes), changes


def _first(nodes: Iterable[Node], gpus: int) -> tuple[Node, ...]:
    taken: list[Node] = []
    for node in nodes:
        here = min(node.gpus, gpus)
        if here:
            taken.append(replace(node, gpus=here))
            gpus -= here
    return tuple(taken)


def misfits(jobs: Sequence[TraceJob], cluster: Cluster, placement: PlacementPolicy) -> list[tuple[TraceJob, str]]:
    """Jobs that this cluster can never run, each with the reason in words."""
    clusters = {vc.name: vc for vc in cluster.virtual_clusters}
    empty = {name: placement.ledger(vc.nodes) for name, vc in clusters.items()}
    known: dict[tuple[str, Demand], str] = {}
    found: list[tuple[TraceJob, str]] = []
    for trace_job in jobs:
        job = trace_job.job
        if job.vc not in clusters:
            found.append((trace_job, _unknown(job.vc, clusters)))
            continue
        demand = placement.demand(job)
        reason = known.get((job.vc, demand))
        if reason is None:
            reason = ""
            if job.gpus > clusters[job.vc].gpus:
                reason = f"needs {format_count(job.gpus, 'GPU')}, its cluster has {clusters[job.vc].gpus}"
            elif demand.gpu_model and not any(node.gpu_model for node in clusters[job.vc].nodes):
                reason = f"asks for GPUs of model {demand.gpu_model}, and the GPU models are unknown (--gpu-model)"
            elif placement.place(empty[job.vc], demand) is None:
                reason = f"no set of its cluster's nodes can hold it ({_told(demand)}, placement {placement.name})"
            known[job.vc, demand] = reason
        if reason:
            found.append((trace_job, reason))
    return found


def _unknown(vc: str, clusters: Mapping[str, VirtualCluster]) -> str:
    if not vc:
        return "it names no virtual cluster"
    return f"the number of nodes of virtual cluster '{vc}' is unknown (other sizes known: {len(clusters)})"


def _told(demand: Demand) -> str:
    more = [format_count(demand.gpus, "GPU")]
    if demand.gpu_model:
        more.append(f"of model {demand.gpu_model}")
    if demand.cpus_per_gpu:
        more.append(f"with {demand.cpus_per_gpu:g} CPUs each")
    if demand.memory_bytes_per_gpu:
        more.append(f"with {demand.memory_bytes_per_gpu / 2**30:.3g} GiB each")
    return " ".join(more)
