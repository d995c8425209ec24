"""Interface of prediction services, with their events and advice. PURE. [helios §4.1, Figure 10]

How it works
  A service has features, a model, a rule for when the model is fitted anew, and actions. It hears facts in the order
  in which they happen: jobs that come and end, samples of virtual clusters. To each it may answer with advice.
  The Model Update Engine (model_update.py) has it fitted; the Resource Orchestrator there hands facts to all
  services and their advice to whoever carries it out: the simulator, or the live manager.

  A service is one class in one file, and knows no clock, file or thread: time is in the facts. So it is causal by
  construction: what has not been told yet can't be known. rebalance.py is the smallest one there is; the other is
  gpu_time.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from farside.scheduler.state import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A job was submitted."""

    at_s: float
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """A job ended, after this many seconds at full speed."""

    at_s: float
    job: Job
    ran_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VcSample:
    """Sample of a virtual cluster. ``idle_nodes``: names of its nodes without jobs."""

    vc: str
    gpus: int
    running_gpus: int
    waiting_gpus: int
    idle_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Sample of all virtual clusters, at regular times."""

    at_s: float
    vcs: tuple[VcSample, ...]


Fact = JobSubmitted | JobEnded | Sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """Expected GPU seconds of a job; NaN: unknown. ``source``: the estimator."""

    sequence: int
    gpu_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNode:
    """Give an idle node of one virtual cluster to another."""

    node: str
    from_vc: str
    to_vc: str
    reason: str


Advice = Expect | MoveNode


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """When a model is trained again: when any of these limits is reached and ``new_facts`` are there.

    Attributes:
        every_s: So long after the last fit.
        growth: When what can be learned from has grown by this share since.
        drift: When recent errors are greater than those at the last fit by this share.
        new_facts: The least number of new facts.
    """

    every_s: float = 7 * 86400.0
    growth: float = 1.0
    drift: float = 0.5
    new_facts: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a fitted model that are needed to use it. Times in seconds on the facts' time line.

    ``tables`` are numbers by name by table: what a category's name means to the model.
    """

    service: str
    features: tuple[str, ...]
    trained_from_s: float
    trained_to_s: float
    trained_on: int
    params: Mapping[str, float]
    tables: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord(ModelFacts):
    """A fitted model as text. ``metrics``: of the model on what was held back."""

    text: str
    metrics: Mapping[str, float] = field(default_factory=dict)


class Service(Protocol):
    """Prediction service: learns from past events."""

    @property
    def name(self) -> str:
        """Name of the service and of its model files."""
        ...

    @property
    def rule(self) -> UpdateRule:
        """Rule for training the model again."""
        ...

    def observe(self, fact: Fact) -> tuple[Advice, ...]:
        """Handle an event, and return advice. Never raises for what an event contains."""
        ...

    @property
    def learnable(self) -> int:
        """How many facts it could learn from, all in all."""
        ...

    @property
    def drift(self) -> float:
        """Share by which recent errors exceed those of the last training; 0 if unknown."""
        ...

    def fit(self, now_s: float) -> ModelRecord | None:
        """Train the model on all data and use it; None: no model, or too little data."""
        ...
