"""Placement by the paper's integer program: a reference for small clusters. PURE. [tiresias §3.3.3.1]

It is no more than that, as the paper found. Its time grows steeply with nodes and servers, it asks for the traffic of
every job, and it treats models alike that mind being spread and models that don't: of skew it knows only what it does
to the servers' sizes. The program itself is in ilp_program.py.
"""

from dataclasses import dataclass, replace
from types import ModuleType

from farside.errors import ConfigError
from farside.scheduler.ledger import Ledger
from farside.scheduler.model_zoo import model_bytes_of, skew_of
from farside.scheduler.node_set import bits
from farside.scheduler.placement.fragments import Fragments, tightest
from farside.scheduler.placement.on_nodes import OnNodes, demand_of
from farside.scheduler.placement.servers import server_sizes
from farside.scheduler.placement.traffic import TrafficLedger
from farside.scheduler.state import Allocation, Demand, Job, Node

_FRAGMENTS = Fragments()


def _program() -> ModuleType:
    """ilp_program.py, loaded late: SciPy takes longer to load than most runs, and the Debian package has none."""
    try:
        from farside.scheduler.placement import ilp_program
    except ImportError as error:
        hint = "`pip install scipy`, or take another, such as consolidate"
        raise ConfigError(f"placement: ilp needs SciPy, which is not here ({error})", hint=hint) from error
    return ilp_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Ilp(OnNodes):
    """Placement by the integer program, for clusters of some ten nodes.

    A job whose parameter servers are not given has as many as workers, "a common practice" [tiresias §3.3.3.1].

    Attributes:
        time_limit_s: For one job. When it ends the search, the best place found so far is taken; when there is none
            yet, the GPUs that are of least use to others (fragments.py): a job that has room always starts. A result
            of a search that was cut short differs from machine to machine.
        node_limit: Ends the search the same way, but on every machine at the same place; 0: without limit.
        most_products: A job for which nodes with free GPUs times servers are more is not searched for at all, as if the
            limit had come at once: merely to write such a program down takes seconds.
    """

    name = "ilp"
    time_limit_s: float = 10.0
    node_limit: int = 0
    most_products: int = 10_000

    def ledger(self, nodes: tuple[Node, ...]) -> Ledger:
        """The nodes with their traffic.

        Raises:
            ConfigError: SciPy is not installed: now, and not when the first job is to be placed.
        """
        _program()
        return TrafficLedger(nodes)

    def demand(self, job: Job) -> Demand:
        """All that a node must have for it, and what it makes the network carry. One GPU needs no network."""
        demand = demand_of(job, is_consolidated=False)
        if job.gpus == 1:
            return demand
        servers = job.parameter_servers or job.gpus
        # A model of unknown size counts as one byte, so that the program has some traffic to spread.
        return replace(demand, parameter_servers=servers, model_bytes=model_bytes_of(job) or 1, skew=skew_of(job))

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """Allocation with the smallest maximum traffic. Raises TypeError for a ledger without traffic."""
        if not isinstance(ledger, TrafficLedger):
            raise TypeError("a ledger made by this policy is needed")
        if ledger.free_gpus < demand.gpus or not demand.parameter_servers:
            return _FRAGMENTS.place(ledger, demand)
        rooms = ledger.rooms(demand)
        cell = tightest(rooms, demand.gpus, ledger.sets.cells(demand))
        if not cell:
            return None
        places = [(at, gpus) for gpus, nodes in enumerate(rooms) for at in bits(nodes & cell)]
        if len(places) * demand.parameter_servers > self.most_products:
            return _FRAGMENTS.place(ledger, demand)
        program = _program()
        problem = program.TrafficProblem(
            free_gpus=tuple(gpus for _, gpus in places),
            traffic_bytes=tuple(ledger.traffic_bytes[at] for at, _ in places),
            workers=demand.gpus,
            server_bytes=server_sizes(demand.model_bytes, demand.parameter_servers, demand.skew),
        )
        found = program.solve(problem, time_limit_s=self.time_limit_s, node_limit=self.node_limit)
        if found is None:
            return _FRAGMENTS.place(ledger, demand)
        allocation = tuple(sorted((places[i][0], gpus) for i, gpus in enumerate(found.workers) if gpus))
        ledger.plan(demand, allocation, tuple(places[host][0] for host in found.hosts))
        return allocation
