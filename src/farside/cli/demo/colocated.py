"""The demo's co-location scene: four jobs of four kinds on two nodes of this machine, regrouped when one ends.

First each job runs alone, one after the other on each node: that measures what an iteration of it needs, how long all
of them take so, and what its model is. Then the rules for groups decide which jobs share a node, and which change
theirs when one ends: by what a manager would know of the jobs, once their executors have told it what they measured.
The manager does none of this: here the scene asks the rules and acts. Its other half has a manager
(colocated_managed.py).

An iteration of the Lasso is nearly all communicating, one of LDA nearly all computing: so these two share a node. When
LDA ends its processor is idle, and one of the two others moves there, which both compute far longer than they
communicate.
"""

import itertools
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from farside.agent.service.executor import taker_of
from farside.agent.training.turn_record import DROPPED_ITERATIONS, job_record
from farside.cli.demo.colocated_groups import GroupFound, Regrouped, Together
from farside.cli.demo.colocated_node import Link, Node, Ran, Worker
from farside.cli.demo.show import Show
from farside.errors import Unavailable
from farside.group_time import WorkProfile
from farside.scheduler.manager.colocation.news import state_of
from farside.scheduler.sharing.colocation.cluster import Cluster
from farside.scheduler.sharing.colocation.forecast import forecast
from farside.scheduler.sharing.colocation.grouping import GroupingRules, decide
from farside.scheduler.sharing.colocation.regroup import Regrouping
from farside.training.app.program import Options

NODES = 2
JOB_LIMIT_S = 240.0
TRIES, PATIENCE_S = 3, 200.0
"""How often all of it is run on a busy machine, and until when it is begun anew."""
SPREAD_MAX = 0.15
"""A machine on which computing alone varies by more measures nothing."""
_SIZING_ITERATIONS = 8
_ROWS_TIMES_MAX = 3.0
_UNJUDGED_SHARE = 4  # where no time is judged, none has to be long


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of the four jobs, and what an iteration of it is meant to need; its rows are chosen for that.

    Attributes:
        options: What its program does.
        comp_s: Seconds of computing.
        net_s: Seconds on the link, both ways: its columns set that.
    """

    options: Options
    comp_s: float
    net_s: float


def _kind(app: Any, iterations: int, rows: int, columns: int, *, comp_s: float, net_s: float, **more: Any) -> Kind:
    options = Options(
        app=app, data="synthetic", iterations=iterations, rows=rows, columns=columns, blocks=8, penalty=0.1, **more
    )
    return Kind(options=options, comp_s=comp_s, net_s=net_s)


# Each node of the jobs alone has two of them, in this order.
KINDS: Mapping[str, Kind] = {
    "lasso": _kind("lasso", 80, 16, 280_000, comp_s=0.03, net_s=0.28),
    "lda": _kind("lda", 45, 7200, 150, comp_s=0.36, net_s=0.03, components=200),
    "nmf": _kind("nmf", 66, 26_000, 940, comp_s=0.30, net_s=0.06, components=64),
    "mlr": _kind("mlr", 66, 24_000, 1500, comp_s=0.30, net_s=0.06, classes=40),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFound:
    """One job: how long it took alone, the nodes that it had with others, and whether both models are equal."""

    name: str
    iterations: int
    alone_s: float
    nodes: tuple[str, ...]
    is_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationScene:
    """What happened.

    Attributes:
        unjudged: Why times say nothing here; empty where they do.
        has_links: The nodes' networks were slowed, so that there are times at all.
        spread: Of computing alone, as a share of an iteration; the largest of the four jobs'.
        apart_s: All jobs one after the other on the two nodes, in the best order.
        together_s: The same jobs in groups, with their moves.
        predicted_s: The latter, by the equations and the rules.
        overlaps: How often two jobs computed at once on a node, both in their turn.
        let_through: Subtasks that began without a turn.
        starts: Starts of jobs, each of which may let a few through.
    """

    unjudged: str
    has_links: bool
    spread: float
    apart_s: float
    together_s: float
    predicted_s: float
    overlaps: int
    let_through: int
    starts: int
    jobs: tuple[JobFound, ...]
    groups: tuple[GroupFound, ...]
    changes: tuple[Regrouped, ...]


def need_packages() -> None:
    """Raises Unavailable: a package is not there; one line."""
    if find_spec("numba") is None:
        raise Unavailable("this scene needs numba, which is not installed", hint="make demo SCENE=colocation")


def play(show: Show, folder: Path, kinds: Mapping[str, Kind] = KINDS) -> ColocationScene:
    """Plays it.

    Raises:
        FarsideError: a job or what serves it did not start, or a job failed.
    """
    need_packages()
    with ExitStack() as stack:
        show.begin("two nodes start, each a processor and a link of this machine")
        nodes, unjudged = _nodes(stack, folder)
        show.end(unjudged or "network namespaces whose loopback carries 16 MB/s")
        if unjudged:
            kinds = {name: _with_rows(kind, kind.options.rows // _UNJUDGED_SHARE) for name, kind in kinds.items()}
        else:
            show.begin("each job's rows are chosen, so that it computes as long as it is meant to")
            kinds = _sized(nodes, folder, kinds)
            show.end(", ".join(f"{name} {kind.options.rows:,}" for name, kind in kinds.items()))
        scene, tries = _once(show, nodes, folder / "0", kinds, unjudged), 1
        while not unjudged and scene.spread > SPREAD_MAX and tries < TRIES and show.took_s <= PATIENCE_S:
            scene, tries = _once(show, nodes, folder / f"{tries}", kinds, unjudged), tries + 1
        if not unjudged and scene.spread > SPREAD_MAX:
            share = f"{100 * scene.spread:.0f} % of an iteration"
            noisy = f"computing alone varied by {share}: this machine is too busy to measure on"
            return replace(scene, unjudged=noisy)
        return scene


def _nodes(stack: ExitStack, folder: Path) -> tuple[list[Node], str]:
    """The nodes, and why their times say nothing, if so."""
    processors = sorted(os.sched_getaffinity(0))
    links: list[Link | None] = [None] * NODES
    unjudged = "" if len(processors) >= NODES else f"there is one processor, and {NODES} nodes are to have one each"
    if not unjudged:
        try:
            links = [stack.enter_context(closing(Link())) for _ in range(NODES)]
        except Unavailable as error:
            unjudged = str(error)
    made = [
        Node(f"n{number + 1}", folder, processor=processors[-1 - number % len(processors)], link=link)
        for number, link in enumerate(links)
    ]
    return [stack.enter_context(node) for node in made], unjudged


def _pairs(kinds: Mapping[str, Kind]) -> list[list[str]]:
    """The jobs that run at one time, each alone on a node."""
    names = list(kinds)
    return [names[at : at + NODES] for at in range(0, len(names), NODES)]


def _sized(nodes: Sequence[Node], folder: Path, kinds: Mapping[str, Kind]) -> dict[str, Kind]:
    """The jobs with so many rows that they compute as long as they are meant to on this machine."""
    few = {
        name: replace(kind, options=msgspec.structs.replace(kind.options, iterations=_SIZING_ITERATIONS))
        for name, kind in kinds.items()
    }
    found = _alone(nodes, folder / "sizing", few)
    sized = {}
    for name, kind in kinds.items():
        times = min(_ROWS_TIMES_MAX, max(1 / _ROWS_TIMES_MAX, kind.comp_s / found[name].least_s))
        sized[name] = _with_rows(kind, round(kind.options.rows * times))
    return sized


def _with_rows(kind: Kind, rows: int) -> Kind:
    rows = max(kind.options.blocks, rows)
    return replace(kind, options=msgspec.structs.replace(kind.options, rows=rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """A job that had a node for itself: its times, what an iteration needs, and its start's time.

    ``least_s``: of computing in one iteration, which other programs of the machine change least.
    """

    ran: Ran
    profile: WorkProfile
    least_s: float
    spread: float
    start_s: float
    out: Path


def _alone(nodes: Sequence[Node], folder: Path, kinds: Mapping[str, Kind]) -> dict[str, _Alone]:
    """All jobs, one after the other on each node."""
    found = {}
    for names in _pairs(kinds):
        workers = dict[str, tuple[Node, Worker, Path]]()
        for node, name in zip(nodes, names, strict=False):
            out = folder / f"{name}.npz"
            out.parent.mkdir(parents=True, exist_ok=True)
            options = msgspec.structs.replace(kinds[name].options, out=str(out))
            start = f"{folder.parent.name}-{folder.name}-{name}"
            workers[name] = node, node.start(start, options, folder / f"{name}.kept"), out
        for _, worker, _ in workers.values():
            worker.wait_ready()
        for _, worker, _ in workers.values():
            worker.go()
        for name, (node, worker, out) in workers.items():
            ran = worker.wait(JOB_LIMIT_S)
            assert ran is not None, "nobody stopped it"
            rows = [row for row in node.trace() if row[0] == worker.start]
            comp = steps_s(rows, worker.start, ("COMP",))
            net_s = statistics.median(steps_s(rows, worker.start, ("PULL", "PUSH")))
            found[name] = _Alone(
                ran=ran,
                profile=profile_of(name, rows),
                least_s=min(comp),
                spread=statistics.stdev(comp) / (statistics.mean(comp) + net_s),
                start_s=worker.start_s,
                out=out,
            )
    return found


def profile_of(name: str, rows: Iterable[Sequence[Any]]) -> WorkProfile:
    """What an iteration of a job needs, as a manager knows it by what the job's executor says; from all its turns."""
    taker = taker_of((name, 0, 1), job_record(rows).status)
    found = state_of([taker], 1).profile(name)
    assert found is not None, "it did no iteration after the first ones"
    return found


def _meant(name: str, kind: Kind) -> WorkProfile:
    # One worker, so one machine, on which the network is the link to the Aggregator.
    return WorkProfile(
        job=name, work_machine_s=kind.comp_s, net_s=kind.net_s, net_alone_s=kind.net_s, machines_most=1
    )  # fmt: skip


def steps_s(rows: Sequence[Sequence[Any]], start: str, phases: Sequence[str]) -> list[float]:
    """Seconds of these phases together in each iteration of a start but its first ones, from an executor's trace."""
    found: dict[int, list[float]] = {}
    for name, position, phase, _asked, granted_ns, done_ns, *_ in rows:
        if name == start and phase in phases and position // 3 >= DROPPED_ITERATIONS:
            found.setdefault(position // 3, []).append((done_ns - granted_ns) / 1e9)
    return [sum(parts) for parts in found.values() if len(parts) == len(phases)]


def _once(show: Show, nodes: Sequence[Node], folder: Path, kinds: Mapping[str, Kind], unjudged: str) -> ColocationScene:
    """All jobs alone, then together."""
    show.begin("each job runs alone, two one after the other on each node")
    alone = _alone(nodes, folder / "alone", kinds)
    show.end(", ".join(f"{name} {one.ran.took_s:.1f} s" for name, one in alone.items()))
    # Without a slow link nothing that was measured of the network is worth a decision.
    profiles = {name: _meant(name, kinds[name]) if unjudged else one.profile for name, one in alone.items()}
    regrouping = Regrouping(GroupingRules(), decide)
    names = tuple(kinds)
    decided = regrouping.arrived(Cluster(machines=len(nodes), waiting=names, profiles=profiles), names).cluster
    expected = forecast(
        decided, {name: float(kind.options.iterations) for name, kind in kinds.items()}, regrouping,
        start_s={name: one.start_s for name, one in alone.items()},
    )  # fmt: skip
    show.begin("the same jobs run in groups: " + ", ".join(" and ".join(group.jobs) for group in decided.groups))
    together = Together(nodes, folder / "together", kinds, regrouping)
    together.run(decided)
    for change in together.changes:
        if change.moved:
            show.end(f"{change.ended} ended, and {' and '.join(change.moved)} moved: {change.why}")
    show.begin("all models are compared with those of the jobs alone")
    jobs = tuple(
        JobFound(
            name=name, iterations=kinds[name].options.iterations, alone_s=one.ran.took_s,
            nodes=tuple(together.nodes_of[name]), is_equal=models_equal(one.out, together.out(name)),
        )
        for name, one in alone.items()
    )  # fmt: skip
    show.end("every bit is equal" if all(job.is_equal for job in jobs) else "not equal")
    overlaps, let_through = together.turns()
    return ColocationScene(
        unjudged=unjudged, has_links=not unjudged, spread=max(one.spread for one in alone.values()),
        apart_s=best_apart_s([job.alone_s for job in jobs], len(nodes)), together_s=together.took_s,
        predicted_s=expected.makespan_s, overlaps=overlaps, let_through=let_through, starts=len(together.starts),
        jobs=jobs, groups=together.groups(), changes=tuple(together.changes),
    )  # fmt: skip


def best_apart_s(alone_s: Sequence[float], nodes: int) -> float:
    """The least time in which nodes do jobs one after the other, each job on one of them."""
    ways = itertools.product(range(nodes), repeat=len(alone_s))
    return min(
        max(sum(took_s for took_s, at in zip(alone_s, way, strict=True) if at == node) for node in range(nodes))
        for way in ways
    )


def models_equal(one: Path, other: Path) -> bool:
    """Whether both files have the same arrays, bit for bit."""
    with np.load(one) as ours, np.load(other) as theirs:
        return set(ours.files) == set(theirs.files) and all(
            ours[name].dtype == theirs[name].dtype and ours[name].tobytes() == theirs[name].tobytes()
            for name in ours.files
        )
