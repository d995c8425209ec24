"""Run times as a row of scheduler processes learns them, each from the log that the one before it left. PURE.

A scheduler process that is killed takes its model of run times with it. The next one hears once more of all jobs that
came and ended (decider/past_use.py), and has a model fitted when that is done: to more jobs than the last one was
fitted to. Jobs that wait are expected by it from then on. So QSSF ranks jobs otherwise after a restart than it would
have without, and a simulation that is to be compared with a log has the log's restarts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.predict.gpu_time_fit import learned_from
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.state import Job


@dataclass(frozen=True, slots=True)
class _Came:
    at_s: float
    job: Job


class RestartedTimes:
    """An estimator that begins anew at given times. Models are fitted at once where that is due.

    Args:
        first: That of the first scheduler process, which knows no job of the log yet.
        make_times: Makes those of the next ones; None: they have none.
        restarts_s: When the next ones took the lead, rising.
    """

    def __init__(
        self, first: LearnedTimes, make_times: Callable[[], LearnedTimes | None], restarts_s: Sequence[float] = ()
    ) -> None:
        self._make_times = make_times
        self._restarts_s = list(restarts_s)
        self._times = first
        self._facts: list[_Came | JobEnded] = []
        self._came: set[int] = set()
        self._untold: dict[int, float] = {}  # expected since a restart, and told to nobody yet

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """What is expected of a job, GPU seconds; see `LearnedTimes`."""
        self._catch_up(now_s)
        if job.sequence not in self._came:
            self._came.add(job.sequence)
            self._facts.append(_Came(now_s, job))
        return self._times.predicted_gpu_s(job, now_s)

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is left of it, seconds; see `LearnedTimes`."""
        return self._times.remaining_s(job, done_s)

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Learns from it; what is expected otherwise now, by sequence: of all jobs after a restart."""
        self._catch_up(ended.at_s)
        self._facts.append(ended)
        told = {**self._untold, **self._times.learn(ended), **self._fitted(ended.at_s)}
        self._untold = {}
        told.pop(ended.job.sequence, None)
        return told

    def primed(self, order: OrderPolicy) -> OrderPolicy:
        """QSSF with the cut that history gives."""
        return self._times.primed(order)

    def _fitted(self, now_s: float) -> Mapping[int, float]:
        lesson = self._times.lesson(now_s)
        return {} if lesson is None else self._times.take(learned_from(lesson))

    def _catch_up(self, now_s: float) -> None:
        """Begins anew where that was due since."""
        if not self._restarts_s or self._restarts_s[0] > now_s:
            return
        self._restarts_s = [at_s for at_s in self._restarts_s if at_s > now_s]
        self._times = self._make_times() or self._times
        pending = dict[int, float]()
        for fact in self._facts:
            if isinstance(fact, _Came):
                pending[fact.job.sequence] = self._times.predicted_gpu_s(fact.job, fact.at_s)
            else:
                pending.pop(fact.job.sequence, None)
                pending |= self._times.learn(fact)
        self._untold = {**pending, **self._fitted(now_s)}
