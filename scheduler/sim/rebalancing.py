"""Effect of rebalancing virtual clusters: a trace simulated with it and without. PURE.

Each virtual cluster is made with all nodes of the cluster, and has its own ones at first. Every ``every_s`` the service
hears how busy each is, and idle nodes move as it says. Nobody is preempted.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from farside.scheduler.domain import Domain
from farside.scheduler.predict.model_update import Orchestrator
from farside.scheduler.predict.rebalance import RebalanceParams, RebalanceService
from farside.scheduler.predict.service import MoveNode, Sampled, VcSample
from farside.scheduler.sim.cluster import Site
from farside.scheduler.sim.experiment import Experiment, Scene
from farside.scheduler.sim.result.figures import Results, results
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.state import Action, Cluster, Node, Resize

EVERY_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalanced:
    """Result of rebalancing. ``moves``: number of nodes moved from one virtual cluster to another, returns excluded."""

    before: Results
    after: Results
    moves: Mapping[tuple[str, str], int]


def rebalance(experiment: Experiment, scene: Scene, params: RebalanceParams, every_s: float = EVERY_S) -> Rebalanced:
    """Run the trace with rebalancing and without. The site's own changes over time are left out."""
    still = Site(cluster=scene.site.cluster)
    before = experiment.simulation(still, scene.jobs).run()
    driver = _Driver(experiment, scene, params, every_s)
    after = driver.simulation.run()
    return Rebalanced(
        before=results(scene.jobs, before, scene.site.cluster, vcs=scene.labels),
        after=results(scene.jobs, after, scene.site.cluster, vcs=scene.labels),
        moves=dict(driver.moves.most_common()),
    )


class _Driver:
    """Feeds samples to the service, and carries out what it advises."""

    def __init__(self, experiment: Experiment, scene: Scene, params: RebalanceParams, every_s: float) -> None:
        vcs = scene.site.cluster.virtual_clusters
        self._at: dict[str, dict[str, Node]] = {
            vc.name: {_name(vc.name, node): node for node in vc.nodes} for vc in vcs
        }
        owners = {name: vc for vc, nodes in self._at.items() for name in nodes}
        self._nodes = {name: replace(node, name=name) for nodes in self._at.values() for name, node in nodes.items()}
        everything = tuple(self._nodes.values())
        cluster = Cluster(virtual_clusters=tuple(replace(vc, nodes=everything) for vc in vcs))
        first_s = scene.jobs[0].job.submit_s
        start = tuple(self._resize(first_s, vc.name) for vc in vcs)
        self.moves = Counter[tuple[str, str]]()
        self.simulation: Simulation = experiment.simulation(Site(cluster=cluster, resizes=start), scene.jobs)
        self.simulation.observers.append(self._observe)
        self._orchestrator = Orchestrator([RebalanceService(params, owners)])
        self._owners = owners
        self._every_s, self._next_s = every_s, first_s + every_s

    def _observe(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        # The first instant after the period has passed: a simulation has no instants of its own.
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        samples = tuple(self._sample(one) for one in self.simulation.domains.values())
        advice = self._orchestrator.tell(Sampled(at_s=now_s, vcs=samples))
        moves = [one for one in advice if isinstance(one, MoveNode)]
        for move in moves:
            self._at[move.to_vc][move.node] = self._at[move.from_vc].pop(move.node)
            # Returns are not counted.
            if self._owners[move.node] == move.from_vc:
                self.moves[move.from_vc, move.to_vc] += 1
        for vc in dict.fromkeys(name for move in moves for name in (move.from_vc, move.to_vc)):
            self.simulation.plan(self._resize(now_s, vc))

    def _resize(self, at_s: float, vc: str) -> Resize:
        return Resize(at_s=at_s, vc=vc, nodes=tuple(self._nodes[name] for name in self._at[vc]))

    def _sample(self, domain: Domain) -> VcSample:
        ledger = domain.ledger
        idle = tuple(node.name for at, node in enumerate(ledger.nodes) if 0 < ledger.capacity[at] == ledger.free[at])
        return VcSample(
            vc=domain.name,
            gpus=ledger.total_gpus,
            running_gpus=ledger.total_gpus - ledger.free_gpus,
            waiting_gpus=sum(domain.jobs[row].gpus for row in domain.waiting.rows()),
            idle_nodes=idle,
        )


def _name(vc: str, node: Node) -> str:
    return f"{vc}/{node.name}"
