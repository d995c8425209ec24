"""Training of a forecast in a thread of its own, so that no turn of the controller waits for it.

LightGBM lets go of Python's lock while it works. A thread that is left behind ends by itself, within seconds.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from farside.log import get_log
from farside.scheduler.energy.forecast_lesson import Learned, Lesson, learned_from
from farside.scheduler.energy.learning_policy import LearningPolicy
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.power.wanted_nodes import PolicyDemand

log = get_log("manager.power")


class Fitter:
    """Training of one policy's forecast; nothing happens for a policy that does not learn."""

    def __init__(self, policy: EnergyPolicy) -> None:
        self._policy = policy if isinstance(policy, LearningPolicy) else None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forecast")
        self._fit: Future[Learned | str] | None = None
        self._learning: Future[None] | None = None

    def learn(self, demand: PolicyDemand, total: float) -> Future[None]:
        """Begin to show the policy its past. Until this is over, no other code may ask for wanted nodes."""
        self._learning = self._pool.submit(demand.learn, total, fit)
        return self._learning

    @property
    def is_learning(self) -> bool:
        """Whether the policy is still learning its past.

        Raises:
            Exception: What was wrong in it.
        """
        if self._learning is None or not self._learning.done():
            return self._learning is not None
        self._learning.result()
        return False

    def look(self) -> None:
        """Take finished trees, and begin training if due."""
        if self._policy is None or self.is_learning:
            return
        if self._fit is not None and self._fit.done():
            self._policy.take(self._fit.result())
            log.info("forecast of busy nodes updated", now=self._policy.remark)
            self._fit = None
        if self._fit is None and (lesson := self._policy.lesson()) is not None:
            self._fit = self._pool.submit(fit, lesson)

    @property
    def remark(self) -> str:
        """Remark on the quality of the forecast; empty without a forecast."""
        if self._policy is None:
            return ""
        return "no forecast yet, as the past is being gone through" if self.is_learning else self._policy.remark

    def close(self) -> None:
        """Stop: begin no further training."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def fit(lesson: Lesson) -> Learned | str:
    """Train trees, or return the error: nodes are switched without a forecast then."""
    try:
        return learned_from(lesson)
    except Exception as error:
        log.error("cannot fit the forecast of busy nodes; nodes are switched without it", cause=error)
        return f"{type(error).__name__}: {error}".splitlines()[0]


def local_s(now_s: float) -> float:
    """Local time of this machine as seconds, as load follows office hours and not UTC."""
    return now_s + time.localtime().tm_gmtoff
