"""Jobs that share machines without taking turns: who wants the processors or the network has an equal share. PURE."""

import random
from collections.abc import Sequence

from farside.group_time import WorkProfile

ITERATIONS = 30
_DROPPED = 4
SPREAD = 0.03


def shared_iterations_s(jobs: Sequence[WorkProfile], machines: int, rng: random.Random) -> dict[str, float]:
    """Seconds that each job takes for an iteration, on average of many, while all of them run.

    Each alternates between communicating and computing. A step's time has a spread of 3 %, without which equal jobs
    would stay in step for ever.
    """
    steps_s = {job.job: (job.comm_s(machines), job.comp_s(machines)) for job in jobs}
    # Seconds that the present step still needs alone; its place in (communicating, computing); iterations done.
    left = {name: _drawn(pair[0], rng) for name, pair in steps_s.items()}
    phase, done = dict.fromkeys(steps_s, 0), dict.fromkeys(steps_s, 0)
    started_s, ended_s = dict[str, float](), dict[str, float]()
    now_s = 0.0
    while min(done.values()) < ITERATIONS:
        sharing = [sum(place == one for place in phase.values()) for one in (0, 1)]
        name = min(left, key=lambda one: left[one] * sharing[phase[one]])
        passed_s = left[name] * sharing[phase[name]]
        for one in left:
            left[one] -= passed_s / sharing[phase[one]]
        now_s += passed_s
        if phase[name]:
            done[name] += 1
            if done[name] == _DROPPED:
                started_s[name] = now_s
            ended_s[name] = now_s
        phase[name] = 1 - phase[name]
        left[name] = _drawn(steps_s[name][phase[name]], rng)
    return {name: (ended_s[name] - started_s[name]) / (done[name] - _DROPPED) for name in steps_s}


def _drawn(seconds: float, rng: random.Random) -> float:
    return seconds * max(0.0, rng.gauss(1.0, SPREAD))
