"""Measure how the time of the paper's placement program grows, and its gain over rules that take microseconds.

A job is placed on nodes of four GPUs of which others hold some, with traffic of theirs. Time is this process's CPU
time; the greatest traffic is in units of the job's own model.
"""

import random
import time
from dataclasses import dataclass
from statistics import median

from benchmarks.figure import Figure, Row, Table
from farside.scheduler.ledger import Ledger
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.fragments import Fragments
from farside.scheduler.placement.ilp_program import TrafficProblem, TrafficSolution, solve
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.servers import server_sizes, servers_beside
from farside.scheduler.placement.traffic import node_traffic
from farside.scheduler.state import Allocation, Demand, Node

NODE_GPUS = 4
SKEWS = {"even": 0.0, "skewed": 0.743}  # VGG16's
QUICK_SIZES = ((2, 4), (4, 4), (4, 8))
FULL_SIZES = (*QUICK_SIZES, (6, 8), (8, 8), (10, 8), (10, 16))
LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job to place, and the same nodes as a ledger."""

    problem: TrafficProblem
    ledger: Ledger


def draw_case(nodes: int, workers: int, skew: float, rng: random.Random) -> Case:
    """Nodes with some GPUs taken; there are always enough for the job."""
    ledger = Ledger([Node(name=f"n{at}", gpus=NODE_GPUS) for at in range(nodes)])
    spare = nodes * NODE_GPUS - workers
    for at in range(nodes):
        taken = min(rng.randint(0, NODE_GPUS - 1), spare)
        spare -= taken
        if taken:
            ledger.take(Demand(gpus=1), ((at, taken),))
    traffic = tuple(rng.random() for _ in range(nodes))
    sizes = server_sizes(1.0, workers, skew)
    problem = TrafficProblem(free_gpus=tuple(ledger.free), traffic_bytes=traffic, workers=workers, server_bytes=sizes)
    return Case(problem=problem, ledger=ledger)


def greatest_traffic(problem: TrafficProblem, allocation: Allocation) -> float:
    """What a placement of the workers comes to with the servers beside them, the largest server first."""
    workers = [dict(allocation).get(at, 0) for at in range(len(problem.free_gpus))]
    hosts = [at for at, count in servers_beside(allocation, len(problem.server_bytes)) for _ in range(count)]
    return max(node_traffic(problem.traffic_bytes, workers, hosts, problem.server_bytes))


def figure(*, is_quick: bool, seed: int) -> Figure:
    """The program beside two rules, over nodes and workers."""
    sizes, draws = (QUICK_SIZES, 2) if is_quick else (FULL_SIZES, 3)
    rows = tuple(_row(nodes, workers, kind, draws, seed) for kind in SKEWS for nodes, workers in sizes)
    header = (
        "tensors",
        "nodes",
        "workers",
        "ILP s",
        "longest",
        "proven",
        "rule us",
        "consolidate",
        "waits",
        "fragments",
    )
    return Figure(
        key="placement-ilp",
        title="Placing one job by integer program and by rule",
        source="tiresias §3.3.3.1",
        tables=(
            Table(caption="CPU time, and the rules' greatest traffic over the program's", header=header, rows=rows),
        ),
        notes=(
            f"Medians of {draws} draws, and the longest; as many servers as workers; a search ends after"
            f" {LIMIT_S:.0f} s. Rule: the slower of both. Waits: draws where no nodes to consolidate on are free.",
            "The paper: 'extremely slow ... for a large-scale cluster', and to balance the network's load 'does not"
            " necessarily improve' training. Both show here: with even tensors it spreads a job wider than it must,"
            " which slows models that mind and gains nothing for those that don't.",
        ),
    )


def _row(nodes: int, workers: int, kind: str, draws: int, seed: int) -> Row:
    rng = random.Random(f"{seed} {nodes} {workers} {kind}")
    times_s, rule_times_s, proven = [], [], 0
    over: dict[str, list[float]] = {"consolidate": [], "fragments": []}
    for _ in range(draws):
        case = draw_case(nodes, workers, SKEWS[kind], rng)
        found, spent_s = _solved(case.problem)
        times_s.append(spent_s)
        proven += found is not None and found.is_proven
        for placement in (Consolidate(), Fragments()):
            allocation, spent_s = _placed(placement, case.ledger, Demand(gpus=workers))
            rule_times_s.append(spent_s)
            if allocation is not None and found is not None:
                over[placement.name].append(greatest_traffic(case.problem, allocation) / found.most_bytes)
    consolidated, fragments = (f"{median(ratios):.2f}" if ratios else "-" for ratios in over.values())
    times = (f"{median(times_s):.2f}", f"{max(times_s):.2f}", f"{proven}/{draws}", f"{max(rule_times_s) * 1e6:.0f}")
    waits = f"{draws - len(over['consolidate'])}/{draws}"
    return (kind, str(nodes), str(workers), *times, consolidated, waits, fragments)


def _solved(problem: TrafficProblem) -> tuple[TrafficSolution | None, float]:
    started_s = time.process_time()
    found = solve(problem, time_limit_s=LIMIT_S)
    return found, time.process_time() - started_s


def _placed(placement: PlacementPolicy, ledger: Ledger, demand: Demand) -> tuple[Allocation | None, float]:
    placement.place(ledger, demand)
    started_s = time.process_time()
    allocation = placement.place(ledger, demand)
    return allocation, time.process_time() - started_s
