"""The cluster that a trace is run on, from what an operator says of it. PURE."""

from collections.abc import Mapping, Sequence

from farside.errors import ConfigError
from farside.scheduler.sim.trace import TraceJob
from farside.scheduler.state import Cluster, Node, VirtualCluster

# Jobs of a cluster without virtual clusters belong to this one.
WHOLE = ""


def equal_nodes(count: int, gpus_per_node: int, *, prefix: str = "n") -> tuple[Node, ...]:
    """``count`` nodes that differ in their names alone."""
    return tuple(Node(name=f"{prefix}{at}", gpus=gpus_per_node) for at in range(count))


def build_cluster(
    *, gpus_per_node: int, nodes: int = 0, vc_nodes: Mapping[str, int] | None = None, vcs: Sequence[str] = ()
) -> Cluster:
    """One pool of ``nodes``, or a virtual cluster for each entry of ``vc_nodes``.

    Args:
        gpus_per_node: GPUs of each node.
        nodes: Nodes of the pool, or of the only virtual cluster in ``vcs``; 0 where ``vc_nodes`` tells.
        vc_nodes: Nodes by virtual cluster.
        vcs: Those to run; empty: all of ``vc_nodes``.

    Raises:
        ConfigError: What is said does not make a cluster.
    """
    if gpus_per_node < 1:
        raise ConfigError(f"--gpus-per-node is {gpus_per_node}", hint="at least 1")
    if nodes:
        if len(vcs) > 1:
            raise ConfigError("--nodes says nothing of several virtual clusters", hint="give --vc-nodes FILE")
        name = vcs[0] if vcs else WHOLE
        return Cluster(virtual_clusters=(VirtualCluster(name=name, nodes=equal_nodes(nodes, gpus_per_node)),))
    known = vc_nodes or {}
    unknown = [name for name in vcs if name not in known]
    if unknown or not known:
        missing = f"virtual cluster {unknown[0]}" if unknown else "the cluster"
        raise ConfigError(f"nobody says how many nodes {missing} has", hint="give --nodes N or --vc-nodes FILE")
    chosen = vcs or tuple(known)
    return Cluster(
        virtual_clusters=tuple(
            VirtualCluster(name=name, nodes=equal_nodes(known[name], gpus_per_node, prefix=f"{name}-"))
            for name in chosen
        )
    )


def misfits(jobs: Sequence[TraceJob], cluster: Cluster) -> list[tuple[TraceJob, str]]:
    """The jobs that this cluster could never run, each with the reason in words."""
    gpus = {vc.name: vc.gpus for vc in cluster.virtual_clusters}
    found: list[tuple[TraceJob, str]] = []
    for trace_job in jobs:
        job = trace_job.job
        if job.vc not in gpus:
            found.append((trace_job, f"virtual cluster {job.vc!r} is not one of {', '.join(sorted(gpus)) or 'none'}"))
        elif job.gpus > gpus[job.vc]:
            found.append((trace_job, f"it needs {job.gpus} GPUs, its cluster has {gpus[job.vc]}"))
    return found
