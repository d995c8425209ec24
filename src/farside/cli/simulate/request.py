"""Preparation of `farside sim`: options are checked and converted before anything runs; each mistake is one line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from farside.cli.sim import Request
from farside.cli.simulate.left_out import TOLD, line_of, without
from farside.cli.simulate.rule_files import charged, check_closable, rule_facts, with_tenancy
from farside.errors import ConfigError
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.qssf import Qssf
from farside.scheduler.predict.gpu_time import NAME, GpuTimeParams, GpuTimeService
from farside.scheduler.predict.job_history import Past
from farside.scheduler.predict.model_files import ModelStore
from farside.scheduler.predict.rolling_estimate import RollingParams
from farside.scheduler.settings import suggestion
from farside.scheduler.sim.cluster import PLAIN, WHOLE, Site, SizeRange, VcSize, build_site, misfits
from farside.scheduler.sim.estimator import past_of
from farside.scheduler.sim.experiment import Experiment, Scene, make_experiments
from farside.scheduler.sim.trace.format.row import BadRow, moment
from farside.scheduler.sim.trace.job import Trace, TraceJob
from farside.scheduler.sim.trace.read import read_trace
from farside.scheduler.sim.trace.read_maintenance import read_closures
from farside.scheduler.sim.trace.read_nodes import read_vc_sizes
from farside.scheduler.sim.trace.read_services import with_prior
from farside.units import CALENDAR_FROM_S, format_bytes, format_count, format_moment

# What --gpu-model says where the models that jobs ask for do not count.
ANY_MODEL = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Ready to run.

    Attributes:
        scene: The jobs and the cluster.
        experiments: One a policy.
        facts: What is run on what, a line each.
        left_out: Rows that are not in it because they were bad, and jobs because they never fit.
        problems: The first lines about those.
        notes: What else was made of rows that are no jobs of this simulator.
    """

    scene: Scene
    experiments: tuple[Experiment, ...]
    facts: tuple[str, ...]
    left_out: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def prepare(request: Request, policies: Sequence[str] | None = None) -> Prepared:
    """Reads what the request names, and finds its mistakes. ``policies``: those to compare, instead of its one.

    Raises:
        ConfigError: The first mistake.
    """
    policies = (request.policy,) if policies is None else policies
    experiments = make_experiments(policies, request.settings_by_name, placement=request.placement)
    # Before the trace is read, which takes longest.
    _check_learners(experiments, request)
    experiments = with_tenancy(experiments, request)
    check_closable(experiments, request)
    sizes = read_vc_sizes(request.vc_nodes, request.gpus_per_node) if request.vc_nodes else ()
    trace = read_trace(request.trace, fmt=request.fmt, on_bad=request.on_bad, attempts=request.attempts)
    chosen = select(trace, request)
    past = _past(trace, request, experiments)
    site = build_site(
        gpus_per_node=request.gpus_per_node, nodes=request.nodes or 0, vc_sizes=sizes,
        vcs=_vcs(request, chosen, sizes), start_s=chosen[0].job.submit_s,
        like=replace(
            PLAIN, cpus=_or_unlimited(request.cpus_per_node), memory_bytes=_or_unlimited(request.memory_per_node),
            gpu_model="" if request.gpu_model == ANY_MODEL else request.gpu_model,
        ),
        nodes_per_rack=request.nodes_per_rack or 0,
    )  # fmt: skip
    if request.maintenance is not None:
        names = [node.name for vc in site.cluster.virtual_clusters for node in vc.nodes]
        closures = read_closures(request.maintenance, names, has_calendar=trace.has_calendar)
        site = replace(site, closures=closures)
    wishing = chosen if request.gpu_model != ANY_MODEL else _without_models(chosen)
    scene = Scene(site=site, jobs=_homed(wishing, site), labels=tuple(entry.job.vc for entry in chosen))
    scene, refused = charged(scene, experiments[0].tenancy, trace.path, request.on_bad)
    scene, told = _fitting(scene, experiments, trace.path, request.on_bad)
    told = [*refused, *told]
    experiments = _with_history(experiments, request.history, past_of(_homed(past, site)))
    experiments, model_notes = _with_model(experiments, request.models)
    return Prepared(
        scene=scene,
        experiments=experiments,
        facts=(
            *_facts(request, trace, scene),
            *rule_facts(request, experiments[0], site),
            *_history_facts(past, experiments),
        ),
        left_out=trace.skipped + len(told),
        problems=(*trace.problems, *told)[:TOLD],
        notes=(
            *(f"{trace.path}: {format_count(count, 'row')} {note}" for count, note in trace.notes),
            *model_notes,
        ),
    )


def _or_unlimited(told: float | None) -> float:
    return math.inf if told is None else told


def _learns(experiment: Experiment) -> bool:
    return isinstance(experiment.order, Qssf) and experiment.estimator.is_learning


def _check_learners(experiments: Sequence[Experiment], request: Request) -> None:
    """Whether anybody has a use for the past that was given."""
    learners = any(_learns(experiment) for experiment in experiments)
    for option, value in (("--train-to", request.train_to), ("--models", request.models)):
        if value and not learners:
            raise ConfigError(
                f"{option} {value}: none of these policies learns from a trace",
                hint="qssf does, with --set estimator=model",
            )
    learners = learners or any(isinstance(experiment.order, Gittins) for experiment in experiments)
    if request.history is not None and not learners:
        raise ConfigError(
            f"--history {request.history}: none of these policies learns from past jobs",
            hint="gittins does, and qssf with --set estimator=model",
        )


def _past(trace: Trace, request: Request, experiments: Sequence[Experiment]) -> tuple[TraceJob, ...]:
    """Jobs to learn from before the first: those of the trace that came and ended by a time, those of another log."""
    if not any(_learns(experiment) for experiment in experiments):
        return ()
    past: list[TraceJob] = []
    if request.history is not None:
        past += read_trace(request.history, on_bad=request.on_bad, attempts=request.attempts).jobs
    if request.train_to:
        until_s = _time(trace, "--train-to", request.train_to, 0.0)
        past += (job for job in trace.jobs if job.job.submit_s + job.duration_s <= until_s)
    return tuple(sorted(past, key=lambda job: job.job.submit_s))


def _with_history(
    experiments: tuple[Experiment, ...], path: Path | None, past: tuple[Past, ...]
) -> tuple[Experiment, ...]:
    """Policies that learn begin with what past jobs took."""
    made: list[Experiment] = []
    for experiment in experiments:
        if _learns(experiment) and past:
            experiment = replace(experiment, estimator=replace(experiment.estimator, history=past))
        elif isinstance(experiment.order, Gittins) and path is not None:
            experiment = replace(experiment, order=with_prior(experiment.order, path))
        made.append(experiment)
    return tuple(made)


def _with_model(
    experiments: tuple[Experiment, ...], folder: Path | None
) -> tuple[tuple[Experiment, ...], tuple[str, ...]]:
    """Learners begin with a model that was fitted earlier; with one that cannot be used, as if there were none."""
    if folder is None:
        return experiments, ()
    try:
        record = ModelStore(folder).load(NAME)
        GpuTimeService(GpuTimeParams(), RollingParams()).use(record)
    except ConfigError as error:
        return experiments, (f"{error}; goes by the rolling estimate or GPUs until there is a model",)
    return tuple(
        replace(one, estimator=replace(one.estimator, record=record)) if _learns(one) else one for one in experiments
    ), ()


def _history_facts(past: Sequence[TraceJob], experiments: Sequence[Experiment]) -> tuple[str, ...]:
    if not any(_learns(experiment) for experiment in experiments):
        return ()
    if not past:
        return ("learned from: nothing but what ends meanwhile",)
    first, last = (format_moment(past[at].job.submit_s) for at in (0, -1))
    return (f"learned from: {len(past):,} jobs, submitted from {first} to {last}, and what ends meanwhile",)


def select(trace: Trace, request: Request) -> tuple[TraceJob, ...]:
    """The jobs of the named virtual clusters that were submitted in the window, its ends included.

    Raises:
        ConfigError: There is no such virtual cluster, a time is none, or no job is left.
    """
    # A dict keeps the order of the trace, so that messages are the same at each run; a set would not.
    known = dict.fromkeys(entry.job.vc for entry in trace.jobs)
    for name in request.vcs:
        if name not in known:
            near = suggestion(name, filter(None, known), "its virtual clusters")
            raise ConfigError(f"{trace.path}: no job of virtual cluster '{name}'", hint=near)
    from_s = _time(trace, "--from", request.from_time, float("-inf"))
    if request.train_to:
        from_s = max(from_s, _time(trace, "--train-to", request.train_to, 0.0))  # what was learned from is over
    to_s = _time(trace, "--to", request.to_time, float("inf"))
    wanted = set(request.vcs or known)
    chosen = tuple(entry for entry in trace.jobs if from_s <= entry.job.submit_s <= to_s and entry.job.vc in wanted)
    if not chosen:
        first, last = (format_moment(trace.jobs[at].job.submit_s) for at in (0, -1))
        raise ConfigError(
            f"{trace.path}: no job is left of {len(trace.jobs)}", hint=f"they were submitted from {first} to {last}"
        )
    return chosen


def _time(trace: Trace, option: str, text: str, default_s: float) -> float:
    if not text:
        return default_s
    try:
        at_s, is_date = moment(option, text.strip())
    except BadRow as bad:
        raise ConfigError(f"{option}: {bad.reason}", hint=bad.fix) from None
    # Compared as numbers, a date on a time line of seconds would select nothing, or all.
    if is_date and not trace.has_calendar:
        raise ConfigError(f"{option}: the trace counts seconds and has no dates", hint="give seconds of its time line")
    if not is_date and trace.has_calendar and at_s < CALENDAR_FROM_S:
        raise ConfigError(f"{option} {text}: the trace has dates", hint="give YYYY-MM-DD HH:MM:SS")
    return at_s


def _vcs(request: Request, jobs: Sequence[TraceJob], sizes: Sequence[VcSize]) -> tuple[str, ...]:
    """Virtual clusters to build: the named ones, otherwise those with jobs in the file; with --nodes alone one pool."""
    if request.vcs or not sizes:
        return request.vcs
    having = {entry.job.vc for entry in jobs}
    return tuple(dict.fromkeys(size.vc for size in sizes if size.vc in having))


def _without_models(jobs: tuple[TraceJob, ...]) -> tuple[TraceJob, ...]:
    return tuple(
        replace(entry, job=replace(entry.job, gpu_model="")) if entry.job.gpu_model else entry for entry in jobs
    )


def _homed(jobs: tuple[TraceJob, ...], site: Site) -> tuple[TraceJob, ...]:
    """Where all run in one pool, nobody's virtual cluster counts any more."""
    if site.cluster.virtual_clusters[0].name != WHOLE:
        return jobs
    return tuple(replace(entry, job=replace(entry.job, vc=WHOLE)) if entry.job.vc else entry for entry in jobs)


def _fitting(
    scene: Scene, experiments: Sequence[Experiment], path: str, on_bad: Literal["refuse", "skip"]
) -> tuple[Scene, list[str]]:
    """Without the jobs that could never run, and a line about each."""
    found: dict[int, str] = {}
    # Each placement once and in order, as experiments often share one.
    for placement in {experiment.placement: None for experiment in experiments}:
        for entry, reason in misfits(scene.jobs, scene.site.cluster, placement):
            found.setdefault(entry.job.sequence, line_of(path, entry, reason))
    return without(
        scene, found, path, on_bad, what="run on this cluster", hint="give the cluster more, or leave such jobs out"
    )


def _facts(request: Request, trace: Trace, scene: Scene) -> tuple[str, ...]:
    first, last = (format_moment(scene.jobs[at].job.submit_s) for at in (0, -1))
    names = [vc.name for vc in scene.site.cluster.virtual_clusters]
    named = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    where = f"virtual cluster{'s' if len(names) > 1 else ''} {named}" if any(names) else "one pool"
    of = f" of {len(trace.jobs):,}" if len(scene.jobs) < len(trace.jobs) else ""
    jobs = f"{len(scene.jobs):,}{of} job{'s' if len(trace.jobs) > 1 else ''}"
    return (
        f"{request.trace}: {jobs}, submitted from {first} to {last}",
        f"{where}: {_told_size(size_of(scene))}{_told_nodes(request)}",
    )


def _told_nodes(request: Request) -> str:
    """What was said of each node besides its GPUs."""
    told = [f"{request.cpus_per_node:g} CPUs"] if request.cpus_per_node is not None else []
    if request.memory_per_node is not None:
        told.append(format_bytes(request.memory_per_node))
    racks = f"; {format_count(request.nodes_per_rack, 'node')} a rack" if request.nodes_per_rack else ""
    return (f"; {' and '.join(told)} a node" if told else "") + racks


def size_of(scene: Scene) -> SizeRange:
    """Size of the cluster while jobs come."""
    first, last = (scene.jobs[at].job.submit_s for at in (0, -1))
    return scene.site.size(first, last)


def _told_size(size: SizeRange) -> str:
    nodes, gpus = format_count(size.nodes, "node"), format_count(size.gpus, "GPU")
    if size.least_gpus == size.most_gpus:
        return f"{nodes}, {gpus}"
    return f"{nodes}, {gpus} when the first job comes; {size.least_gpus:,} to {size.most_gpus:,} GPUs until the last"
