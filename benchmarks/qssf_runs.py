"""Runs of QSSF for its tables: traces whose first half is learned from, and the noise of Helios's experiment."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from farside.cli.simulate.parallel import run_all
from farside.scheduler.predict.job_history import Past
from farside.scheduler.sim.cluster import build_site
from farside.scheduler.sim.estimator import Primer, past_of
from farside.scheduler.sim.experiment import Experiment, Outcome, Scene, make_experiments
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.workload.catalog import WORKLOADS
from farside.scheduler.sim.workload.generate import Workload, draw, to_trace

NODES, GPUS_PER_NODE = 16, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is learned from, and what is run after that. ``kinds``: by a job's number, whose name it has in truth."""

    past: tuple[Past, ...]
    scene: Scene
    kinds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A policy, its settings, and what a table calls it."""

    label: str
    policy: str
    settings: tuple[tuple[str, str], ...] = ()


def lesson(jobs: int, seed: int, **changes: object) -> Lesson:
    """A draw of the workload ``repeating``, changed: the older half is history, as far as it has ended."""
    workload: Workload = replace(WORKLOADS["repeating"], jobs=jobs, **changes)  # type: ignore[arg-type]
    columns = draw(workload, np.random.default_rng(seed))
    drawn = to_trace(workload, columns).jobs
    half = drawn[len(drawn) // 2 :]
    site = build_site(nodes=NODES, gpus_per_node=GPUS_PER_NODE)
    scene = Scene(site=site, jobs=half, labels=tuple(job.job.vc for job in half))
    # A name below 0 comes once.
    kinds = np.where(columns.name < 0, columns.name, columns.user * workload.names + columns.name)
    return Lesson(past=past_of(drawn, half[0].job.submit_s), scene=scene, kinds=tuple(kinds.tolist()))


def experiments(takes: Sequence[Take], past: tuple[Past, ...] = ()) -> list[Experiment]:
    """One a take; those that learn begin with the past."""
    made = [make_experiments((take.policy,), dict(take.settings))[0] for take in takes]
    return [
        replace(one, estimator=replace(one.estimator, history=past)) if one.estimator.is_learning else one
        for one in made
    ]


def outcomes(takes: Sequence[Take], scene: Scene, past: tuple[Past, ...] = ()) -> dict[str, Outcome]:
    """What comes of each, by its label."""
    found = run_all(experiments(takes, past), scene, is_keeping_segments=False, tell=lambda at, share: None)
    return {take.label: outcome for take, outcome in zip(takes, found, strict=True)}


class HeliosNoise:
    """Expectations as in Helios's Philly experiment: the truth, and an error drawn from five uniform pieces. [helios
    §4.2.3]

    A tenth of all jobs is off by up to 10 %, 40 % by up to 50 %, 20 % by up to 100 %, 20 % by up to 1,000 %, a tenth
    by up to 10,000 %, over as often as under (the pieces are those of its published code). Under by more than all of
    it is a negative priority there, which goes first. ``is_folded`` divides instead of subtracting: as wrong, and
    never negative.
    """

    PIECES = ((0.1, 0.0, 0.1), (0.5, 0.1, 0.5), (0.7, 0.5, 1.0), (0.9, 1.0, 10.0), (1.0, 10.0, 100.0))

    def __init__(self, seed: int, *, is_folded: bool) -> None:
        self._rng = random.Random(seed)
        self._is_folded = is_folded

    def __call__(self, trace: TraceJob) -> float:
        """GPU seconds."""
        level = self._rng.random()
        low, high = next((low, high) for most, low, high in self.PIECES if level <= most)
        error = self._rng.uniform(low, high)
        true = trace.duration_s * trace.job.gpus
        if self._rng.random() < 0.5:
            return true * (1 + error)
        return true / (1 + error) if self._is_folded else true * (1 - error)


def average_with(estimator: Primer, take: Take, scene: Scene) -> tuple[float, float]:
    """Average JCT and queueing delay, seconds, of a policy that goes by these expectations."""
    (experiment,) = experiments([take])
    runs = experiment.simulation(scene.site, scene.jobs, estimator).run()
    jct_s = [run.end_s - job.job.submit_s for run, job in zip(runs, scene.jobs, strict=True)]
    queue_s = [jct - run.held_s for jct, run in zip(jct_s, runs, strict=True)]
    return sum(jct_s) / len(jct_s), sum(queue_s) / len(queue_s)
