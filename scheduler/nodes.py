"""Constant facts about the nodes of one domain: which are alike, and the capacity of each. PURE."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from farside.scheduler.node_set import node_set_of
from farside.scheduler.state import ANY_NODE, Choice, Demand, Node

# Shares of CPUs do not add up exactly: so much may be missing. Memory is in bytes, so a byte.
EDGE_CPUS = 1e-6
EDGE_BYTES = 1.0
# Traces with a memory size of its own for each job have as many kinds of demand as jobs; this many are remembered.
REMEMBERED = 512

K = TypeVar("K", bound=Hashable)

# (GPUs of one demand that fit on each, the nodes), most first.
Capacities = tuple[tuple[int, int], ...]


class NodeSets:
    """Sets of nodes by size, GPU model, user, rack and RDMA domain. A node's bit is its index in ``nodes``."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(nodes)
        self._chosen: dict[Choice, int] = {ANY_NODE: -1}
        self._models = dict(_grouped(nodes, lambda node: node.gpu_model.casefold()))
        self._wanted: dict[str, int] = {"": -1}
        self._users: dict[str, int] = {"": -1}
        lists = _grouped(nodes, lambda node: node.users)
        # The sets have no node in common, so that their sum is their union.
        self._open = sum(node_set for users, node_set in lists if not users)
        for users, node_set in lists:
            for user in users:
                self._users[user] = self._users.get(user, self._open) | node_set
        sizes = _grouped(nodes, lambda node: node.gpus)
        self.by_size: Capacities = tuple(sorted((size for size in sizes if size[0] > 0), reverse=True))
        racks = _grouped(nodes, lambda node: node.rack)
        self.racks = tuple(node_set for _, node_set in racks)
        self.named_racks = tuple(node_set for name, node_set in racks if name)
        self._domains = tuple(node_set for _, node_set in _grouped(nodes, lambda node: node.rdma_domain))
        self._cells = tuple(
            node_set for _, node_set in _grouped(nodes, lambda node: (node.rdma_domain, node.gpu_model))
        )
        self._gpus = np.array([node.gpus for node in nodes], dtype=float)
        self._cpus = np.array([node.cpus for node in nodes], dtype=float)
        self._memory_bytes = np.array([node.memory_bytes for node in nodes], dtype=float)
        self._swap_bytes = np.array([node.swap_bytes for node in nodes], dtype=float)
        self.is_counting_more = any(
            node.cpus < math.inf or node.memory_bytes < math.inf or node.swap_bytes > 0 for node in nodes
        )
        self._remembered: dict[tuple[float, float, float, str, str, Choice], Capacities] = {}

    def of_model(self, wanted: str) -> int:
        """The nodes with a GPU model that will do: ``wanted``, or one of several with bars between; -1 (all) for none.

        Upper and lower case are the same. A node that does not say its model will do for nobody who wants one.
        """
        found = self._wanted.get(wanted)
        if found is None:
            found = 0
            for model in models_of(wanted):
                found |= self._models.get(model, 0)
            self._wanted[wanted] = found
        return found

    def chosen(self, choice: Choice) -> int:
        """The nodes that will do by their names and features; -1 for all."""
        found = self._chosen.get(choice)
        if found is None:
            if len(self._chosen) >= REMEMBERED:
                self._chosen = {ANY_NODE: -1}
            takes = np.array([choice.takes(node.name, node.features) for node in self._nodes], dtype=np.bool_)
            found = self._chosen[choice] = node_set_of(takes)
        return found

    def suitable(self, demand: Demand) -> int:
        """The nodes with a GPU model that will do, which run jobs of this user and are chosen; -1 for all."""
        return (
            self.of_model(demand.gpu_model) & self._users.get(demand.runs_as, self._open) & self.chosen(demand.choice)
        )

    def all_suit(self, demand: Demand) -> bool:
        """Whether a demand asks for GPUs alone, of any kind."""
        return not (demand.gpu_model or demand.runs_as or demand.choice or self.counts(demand))

    def counts(self, demand: Demand) -> bool:
        """Whether CPUs, memory or swap of this demand may be what a node lacks."""
        if demand.swap_bytes_per_gpu > 0:
            return True
        return self.is_counting_more and (demand.cpus_per_gpu > 0 or demand.memory_bytes_per_gpu > 0)

    def capacities(self, demand: Demand) -> Capacities:
        """How many GPUs of a demand fit on the nodes when they are empty; nodes where none does are left out."""
        if self.all_suit(demand):
            return self.by_size
        key = (
            demand.cpus_per_gpu, demand.memory_bytes_per_gpu, demand.swap_bytes_per_gpu, demand.gpu_model,
            demand.runs_as, demand.choice,
        )  # fmt: skip
        found = self._remembered.get(key)
        if found is None:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            found = self._remembered[key] = self._capacities(demand)
        return found

    def _capacities(self, demand: Demand) -> Capacities:
        suitable = self.suitable(demand)
        room = self._gpus.copy()
        if demand.cpus_per_gpu > 0:
            np.minimum(room, np.floor((self._cpus + EDGE_CPUS) / demand.cpus_per_gpu), out=room)
        if demand.memory_bytes_per_gpu > 0:
            np.minimum(room, np.floor((self._memory_bytes + EDGE_BYTES) / demand.memory_bytes_per_gpu), out=room)
        if demand.swap_bytes_per_gpu > 0:
            np.minimum(room, np.floor((self._swap_bytes + EDGE_BYTES) / demand.swap_bytes_per_gpu), out=room)
        sets = ((int(gpus), node_set_of(room == gpus) & suitable) for gpus in np.unique(room)[::-1] if gpus > 0)
        return tuple((gpus, node_set) for gpus, node_set in sets if node_set)

    def cells(self, demand: Demand) -> tuple[int, ...]:
        """The sets of nodes within one of which a gang must stay: alike in RDMA domain and in GPU model.

        A gang goes at the pace of its slowest GPU. Only one that no set with a single model could ever hold may mix
        models; none may cross RDMA domains.
        """
        if len(self._cells) == len(self._domains):
            return self._domains
        capacities = self.capacities(demand)
        could_hold = any(_fewest(demand.gpus, capacities, cell) for cell in self._cells)
        return self._cells if could_hold else self._domains

    def fewest(self, demand: Demand) -> int:
        """The fewest nodes that hold a demand when all are empty; 0: they never do."""
        capacities = self.capacities(demand)
        found = (_fewest(demand.gpus, capacities, cell) for cell in self.cells(demand))
        return min((nodes for nodes in found if nodes), default=0)


def models_of(wanted: str) -> tuple[str, ...]:
    """The GPU models, in lower case, of which any will do: one, or several with bars between."""
    return tuple(model.strip() for model in wanted.casefold().split("|") if model.strip())


def _fewest(gpus: int, capacities: Capacities, within: int) -> int:
    nodes = 0
    for capacity, node_set in capacities:
        count = (node_set & within).bit_count()
        # The largest nodes come first, so that no other choice takes fewer.
        if count * capacity >= gpus:
            return nodes + -(-gpus // capacity)
        nodes += count
        gpus -= count * capacity
    return 0


def _grouped(nodes: Sequence[Node], key: Callable[[Node], K]) -> list[tuple[K, int]]:
    # A bit at a time would be quadratic: each shift makes an integer as long as the cluster is large.
    members: dict[K, list[int]] = {}
    for at, node in enumerate(nodes):
        members.setdefault(key(node), []).append(at)
    found: list[tuple[K, int]] = []
    for value, places in members.items():
        is_member = np.zeros(len(nodes), dtype=np.bool_)
        is_member[places] = True
        found.append((value, node_set_of(is_member)))
    return found
