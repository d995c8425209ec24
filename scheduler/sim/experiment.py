"""Experiment: one trace under one set of rules, from the operator's names and settings to the figures. PURE."""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from farside.errors import ConfigError, FarsideError
from farside.scheduler.domain import Rules, reserve_after
from farside.scheduler.order.catalog import ORDERS, Needs, make_order, needs_of
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.placement.catalog import PLACEMENTS, make_placement
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.predict.gpu_time import GpuTimeParams
from farside.scheduler.predict.rolling_estimate import RollingParams
from farside.scheduler.preemption_cost import PREEMPTION_COSTS, PreemptionCost, make_preemption_cost
from farside.scheduler.settings import chosen, from_settings, settings_of
from farside.scheduler.sim.cluster import Site
from farside.scheduler.sim.estimator import Estimation, EstimatorName, EstimatorSpec, Foreknown, Judged, Primer
from farside.scheduler.sim.oracle import Oracle
from farside.scheduler.sim.result.digest import Digest
from farside.scheduler.sim.result.figures import Results, results
from farside.scheduler.sim.result.record import Recorder, Recording
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.slowdown import SLOWDOWNS, Slowdown, make_slowdown
from farside.scheduler.tenancy import Account, Tenancy

PLACEMENT = "consolidate"
# Where a scheduler is order and placement together, the placement that belongs to its order.
_PLACEMENT_OF: Mapping[str, str] = {"yarn-cs": "yarn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of ``--set`` besides the fields of policy, placement, cost, effect and estimator.

    Attributes:
        cost: What a preemption costs: a name of the catalogue.
        effect: How a place slows a job down: a name of the catalogue.
        min_run_s: A job that was started is left alone this long, from when it makes progress.
        reserve_after_s: A job that has waited this long in one go is reserved for; infinite, or 0 as the manager's
            setting has it: none is.
        tick_s: The scheduler only acts at multiples of this; 0: whenever something happens.
        is_lending: Idle nodes of a virtual cluster where nobody waits run the others' jobs.
        in_whole_seconds: Thresholds are noticed whole seconds after a start, as the authors' simulator has it.
        fair_share_half_life_s: Users who have used less go first, whatever the policy; use fades by half in this
            time. 0: off.
        user_quota_gpus: The most GPUs that the jobs of one user hold at once; 0: any number.
        estimator: Where policies that go by expectations have them from: an ``oracle``, or a ``model``, the ``rolling``
            estimate or the number of ``gpus``, which learn as jobs end.
    """

    cost: str = "free"
    effect: str = "none"
    min_run_s: float = 0.0
    reserve_after_s: float = math.inf
    tick_s: float = 0.0
    is_lending: bool = False
    in_whole_seconds: bool = True
    fair_share_half_life_s: float = 0.0
    user_quota_gpus: int = 0
    estimator: EstimatorName = "oracle"

    def __post_init__(self) -> None:
        """Refuses a scheduler that never acts."""
        if self.tick_s == math.inf:
            raise ValueError("tick_s: must be finite; 0 lets the scheduler act whenever something happens")
        reserve_after(self.reserve_after_s)

    @property
    def tenancy(self) -> Tenancy | None:
        """Every user is an account of one share: traces know no others."""
        if not (self.fair_share_half_life_s or self.user_quota_gpus):
            return None
        others = Account(name="", quota_gpus=self.user_quota_gpus or math.inf)
        return Tenancy(others=others, half_life_s=self.fair_share_half_life_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Experiment: all settings of a run. ``name``: the policy's, as the user gave it.

    ``tenancy``: accounts and qualities of service; None: those of the options.
    """

    name: str
    order: OrderPolicy
    placement: PlacementPolicy
    preemption_cost: PreemptionCost
    slowdown: Slowdown
    estimator: EstimatorSpec
    options: Options
    tenancy: Tenancy | None = None

    def __post_init__(self) -> None:
        """Refuse what a count of GPUs knows nothing of, as the published simulator does not."""
        if not self.order.traits.is_counting_first:
            return
        others = {
            "is_lending": self.options.is_lending,
            "reserve_after_s": self.rules.reserve_after_s < math.inf,
            "accounts, quotas or fair share": self.rules.tenancy is not None,
        }
        for other, is_asked in others.items():
            if is_asked:
                raise ConfigError(
                    f"{self.name}: preempts_by=count does not go with {other}",
                    hint="take preempts_by=placement, the default, or leave the other out",
                )

    @property
    def rules(self) -> Rules:
        """Scheduling rules for the domains."""
        return Rules(
            order=self.order,
            placement=self.placement,
            preemption_cost=self.preemption_cost,
            slowdown=self.slowdown,
            min_run_s=self.options.min_run_s,
            reserve_after_s=reserve_after(self.options.reserve_after_s),
            tenancy=self.options.tenancy if self.tenancy is None else self.tenancy,
        )

    def settings(self) -> Mapping[str, Mapping[str, object]]:
        """All settings by the part that has them; enough to repeat the run."""
        parts = {
            "policy": (self.name, self.order),
            "placement": (self.placement.name, self.placement),
            "cost": (self.preemption_cost.name, self.preemption_cost),
            "effect": (self.slowdown.name, self.slowdown),
            "estimator": ("oracle", self.estimator.oracle),
            "model": (self.estimator.name, self.estimator.gpu_time),
            "rolling": (self.estimator.name, self.estimator.rolling),
            "options": ("options", self.options),
        }
        if not self.estimator.is_learning:
            del parts["model"], parts["rolling"]
        return {
            part: {"name": name, **{key: getattr(of, key) for key in settings_of(type(of))}}
            for part, (name, of) in parts.items()
        }

    @property
    def goes_by_expectations(self) -> bool:
        """Whether the policy needs an estimator."""
        return needs_of(self.order) is Needs.EXPECTATION

    def make_estimator(self, jobs: Sequence[TraceJob]) -> Judged:
        """Make a new estimator for each run; the oracle if the policy needs none, as it is cheap."""
        return self.estimator.make(jobs) if self.goes_by_expectations else Foreknown(self.estimator.oracle, jobs)

    def simulation(self, site: Site, jobs: Sequence[TraceJob], estimator: Primer | None = None) -> Simulation:
        """Make the simulation, with this estimator or the experiment's own."""
        estimator = estimator or self.make_estimator(jobs)
        return Simulation(
            site.cluster,
            replace(self.rules, order=estimator.primed(self.order)),
            jobs,
            estimator=estimator,
            is_lending=self.options.is_lending,
            tick_s=self.options.tick_s,
            is_in_whole_seconds=self.options.in_whole_seconds,
            resizes=site.resizes,
            closures=site.closures,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Shared settings of all experiments of a comparison.

    Attributes:
        site: The cluster.
        jobs: Each in the virtual cluster that it runs in.
        labels: The virtual cluster that each counts for; another one only where all run in one pool.
    """

    site: Site
    jobs: tuple[TraceJob, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of an experiment. ``digest`` is equal for all runs with equal decisions.

    ``estimation``: how good expectations were, where the policy goes by them.
    """

    experiment: Experiment
    results: Results
    recording: Recording
    events: int
    digest: str
    estimation: Estimation | None = None


def make_experiments(
    policies: Sequence[str], settings: Mapping[str, str], *, placement: str = ""
) -> tuple[Experiment, ...]:
    """Make an experiment for each policy.

    A setting goes to every part that has a field of its name: ``limits_gpu_s`` to those of the policies that know it.
    ``part.name`` means one part alone: the name of a policy, or ``placement``, ``cost``, ``effect``, ``oracle``.

    Args:
        policies: Names.
        settings: Text by name.
        placement: Of all policies; empty: the one that belongs to each.

    Raises:
        ConfigError: An unknown name of anything, with the nearest right one; a value that is not taken; a setting that
            no part has.
    """
    if not policies:
        raise ConfigError("--policy names no policy", hint=f"those there are: {', '.join(ORDERS)}")
    parts = _Parts(settings)
    options = from_settings(Options, parts.settings(("options",), Options), of="options")
    made = tuple(
        _made(policy, placement or _PLACEMENT_OF.get(policy, PLACEMENT), options, parts) for policy in policies
    )
    parts.refuse_unused(made)
    return made


def _made(policy: str, placement: str, options: Options, parts: "_Parts") -> Experiment:
    order = parts.settings((policy, "policy"), chosen(policy, ORDERS, "policy"))
    where = parts.settings((placement, "placement"), chosen(placement, PLACEMENTS, "placement"))
    cost = parts.settings(("cost",), chosen(options.cost, PREEMPTION_COSTS, "cost model"))
    effect = parts.settings(("effect",), chosen(options.effect, SLOWDOWNS, "effect"))
    return Experiment(
        name=policy,
        order=make_order(policy, order),
        placement=make_placement(placement, where),
        preemption_cost=make_preemption_cost(options.cost, cost),
        slowdown=make_slowdown(options.effect, effect),
        estimator=_made_estimator(options.estimator, parts),
        options=options,
    )


def _made_estimator(name: EstimatorName, parts: "_Parts") -> EstimatorSpec:
    if name == "oracle":
        return EstimatorSpec(oracle=from_settings(Oracle, parts.settings(("oracle",), Oracle), of="oracle"))
    return EstimatorSpec(
        name=name,
        gpu_time=from_settings(GpuTimeParams, parts.settings((name, "estimator"), GpuTimeParams), of=name),
        rolling=from_settings(RollingParams, parts.settings((name, "estimator"), RollingParams), of=name),
    )


class _Parts:
    """What the user set, and which of it some part has taken."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._used = set[str]()

    def settings(self, names: Sequence[str], cls: type) -> dict[str, str]:
        """Those of one part, which has these names; what names the part goes over what only names the field."""
        own: dict[str, str] = {}
        # The plain name first, so that one with a part goes over it.
        for before in ("", *(f"{name}." for name in names)):
            for field_name in settings_of(cls):
                if before + field_name in self._given:
                    own[field_name] = self._given[before + field_name]
                    self._used.add(before + field_name)
        return own

    def refuse_unused(self, made: Sequence[Experiment]) -> None:
        """Refuse settings that no part has used."""
        for name in self._given:
            if name not in self._used:
                known = sorted({key for one in made for part in one.settings().values() for key in part} - {"name"})
                close = difflib.get_close_matches(name.rpartition(".")[2], known, n=1, cutoff=0.5)
                hint = f"did you mean '{close[0]}'?" if close else f"settings here: {', '.join(known)}"
                raise ConfigError(f"--set {name}: no part of this run has such a setting", hint=hint)


class Unfinished(FarsideError):
    """Some jobs never ended, and no event is left."""


@dataclass(slots=True)
class _Progress:
    """An observer that reports the share of ended jobs from time to time."""

    simulation: Simulation
    tell: Callable[[float], None]
    cycles: int = field(default=0)

    def __call__(self, *_: object) -> None:
        self.cycles += 1
        if self.cycles % 512 == 0:
            self.tell(1.0 - self.simulation.left / max(1, len(self.simulation.jobs)))


def run_experiment(
    experiment: Experiment,
    scene: Scene,
    *,
    is_keeping_segments: bool = False,
    tell: Callable[[float], None] | None = None,
) -> Outcome:
    """Run a trace to its end.

    Args:
        experiment: By what.
        scene: What and where.
        is_keeping_segments: For the picture of who held which GPUs.
        tell: Called now and then with the share of jobs that have ended.

    Raises:
        Unfinished: Some jobs never ended.
    """
    estimator = experiment.make_estimator(scene.jobs)
    simulation = experiment.simulation(scene.site, scene.jobs, estimator)
    recorder = Recorder(simulation, is_keeping_segments=is_keeping_segments)
    digest = Digest(scene.jobs)
    simulation.observers.append(digest)
    if tell is not None:
        simulation.observers.append(_Progress(simulation, tell))
    runs = simulation.run()
    left = [job for job, run in zip(scene.jobs, runs, strict=True) if math.isnan(run.end_s)]
    if left:
        told = f"line {left[0].line}, job {left[0].job.job_id}"
        raise Unfinished(
            f"{experiment.name}: {len(left)} of {len(runs)} jobs never ended, the first is that of {told}",
            hint="its virtual cluster may have shrunk below what it needs",
        )
    return Outcome(
        experiment=experiment,
        results=results(scene.jobs, runs, scene.site.cluster, vcs=scene.labels, resizes=scene.site.resizes),
        recording=recorder.finish(max((run.end_s for run in runs), default=0.0)),
        events=simulation.events,
        digest=digest.value,
        estimation=estimator.summary(scene.jobs) if experiment.goes_by_expectations else None,
    )
