"""Network traffic of each node in one iteration of a job, by the job's allocation. PURE. [tiresias §3.3.3.1]"""

from collections.abc import Sequence

from farside.scheduler.ledger import Ledger
from farside.scheduler.placement.servers import server_sizes, servers_beside
from farside.scheduler.state import Allocation, Demand, Node


def node_traffic(
    existing: Sequence[float], workers: Sequence[int], hosts: Sequence[int], sizes: Sequence[float]
) -> list[float]:
    """T_i, the bytes that go through each node's network in an iteration.

    Each worker exchanges with every server what that one hosts; with a server on its own node nothing crosses the
    network: ``T_i = t_i + w_i (M - P_i) + P_i (W - w_i)``, P_i being what the servers on node i host.

    Args:
        existing: t_i, the traffic of other jobs on each node.
        workers: w_i, how many workers stand on each node.
        hosts: The node of each server.
        sizes: s_j, what each server hosts.
    """
    hosted = [0.0] * len(existing)
    for at, size in zip(hosts, sizes, strict=True):
        hosted[at] += size
    total, model_bytes = sum(workers), sum(sizes)
    return [
        traffic + here * (model_bytes - held) + held * (total - here)
        for traffic, here, held in zip(existing, workers, hosted, strict=True)
    ]


def crossing_share(workers: Sequence[int]) -> float:
    """The share of a job's traffic that crosses from machine to machine, its servers beside its workers.

    0 on one machine, 1/2 on two equal ones, 1 - 1/W with a machine for each of W workers.
    """
    total = sum(workers)
    return 1.0 - sum((here / total) ** 2 for here in workers)


class TrafficLedger(Ledger):
    """Ledger that also has the network traffic of each node.

    Jobs of equal demand on equal GPUs are interchangeable: when one of them goes, the servers of either go.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self.traffic_bytes = [0.0] * len(nodes)
        # Nodes of the servers: as planned, by what `take` will be called with, and as booked. Jobs of equal demand on
        # equal GPUs share a list.
        self._planned: dict[tuple[Demand, Allocation], tuple[int, ...]] = {}
        self._booked: dict[tuple[Demand, Allocation], list[tuple[int, ...]]] = {}

    def plan(self, demand: Demand, allocation: Allocation, hosts: tuple[int, ...]) -> None:
        """Set the nodes of the servers before an allocation is booked; default: beside the workers."""
        self._planned[demand, allocation] = hosts

    def hosts(self, demand: Demand, allocation: Allocation) -> tuple[int, ...]:
        """The node of each server of a job that holds this."""
        return self._booked[demand, allocation][-1]

    def take(self, demand: Demand, allocation: Allocation) -> None:
        """Book GPUs, and the job's traffic."""
        super().take(demand, allocation)
        if not demand.parameter_servers:
            return
        beside = [at for at, count in servers_beside(allocation, demand.parameter_servers) for _ in range(count)]
        hosts = self._planned.get((demand, allocation), tuple(beside))
        self._booked.setdefault((demand, allocation), []).append(hosts)
        self._carry(demand, allocation, hosts, 1)

    def give(self, demand: Demand, allocation: Allocation) -> None:
        """Free GPUs and traffic."""
        super().give(demand, allocation)
        if demand.parameter_servers:
            self._carry(demand, allocation, self._booked[demand, allocation].pop(), -1)

    def _carry(self, demand: Demand, allocation: Allocation, hosts: tuple[int, ...], sign: int) -> None:
        workers = dict(allocation)
        places = sorted({*workers, *hosts})
        carried = node_traffic(
            [0.0] * len(places),
            [workers.get(at, 0) for at in places],
            [places.index(at) for at in hosts],
            server_sizes(demand.model_bytes, demand.parameter_servers, demand.skew),
        )
        for at, traffic in zip(places, carried, strict=True):
            self.traffic_bytes[at] += sign * traffic
