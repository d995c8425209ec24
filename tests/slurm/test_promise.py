"""What the shadow promises is what `run` brings: the engine orders jobs of a Slurm that obeys, and is simulated."""

import asyncio
import heapq
import math
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.config import SlurmConfig, load_config
from farside.scheduler.predict import choose_estimator, gpu_time
from farside.scheduler.predict.fit_process import Fitter
from farside.scheduler.predict.gpu_time import GpuTimeParams, GpuTimeService
from farside.scheduler.predict.gpu_time_fit import Fitted, Lesson, learned_from
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.model_files import ModelStore
from farside.scheduler.predict.service import UpdateRule
from farside.scheduler.sim.learned_before import learned_before
from farside.scheduler.slurm.engine import Engine, Mode
from farside.scheduler.slurm.shadow import Gain, expected_gain
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob, Snapshot
from farside.scheduler.slurm.state_file import StateFiles
from tests.predict.log import past, repeating
from tests.slurm.made import NOW_S, FakeSlurm, groups, node, over, snapshot, waiting

GPUS = 8
SOON_S = 1e-5
ERRORS = ("error_model", "error_rolling", "error_gpus")
LIMITS = "limits_gpu_s=100.0331,400.0717"


@dataclass(frozen=True)
class Coming:
    """A job: after so long, for so long; ``delay_s``: it waits so long for another job, as far as Slurm says."""

    after_s: float
    run_s: float
    gpus: int
    user: str
    name: str
    is_limited: bool
    delay_s: float


_SECONDS = st.integers(1, 4000).map(lambda tenths: tenths / 10)
DAYS = st.lists(
    st.builds(
        Coming, after_s=_SECONDS, run_s=_SECONDS, gpus=st.sampled_from((1, 2, 4, 8)), is_limited=st.booleans(),
        user=st.sampled_from(("ann", "bob")), name=st.sampled_from(("train", "test", "sweep-1")),
        delay_s=st.sampled_from((0.0, 0.0, 333.3)),
    ),
    min_size=12, max_size=20,
)  # fmt: skip


class Day:
    """A Slurm with one node: the engine takes a turn whenever a job may start, ends or changes its queue.

    These are the moments that the simulation knows. An index moves between them too, so that a turn at any other time,
    as when a job comes that waits for another, may requeue a job which the simulation lets run on.
    """

    def __init__(self, config: SlurmConfig) -> None:
        self.config = config
        self.jobs: dict[str, SlurmJob] = {}
        self.slurm = FakeSlurm(self.seen(NOW_S))
        self.engine = Engine(config, Mode.RUN, self.slurm, now_s=lambda: self.slurm.seen.at_s)

    def seen(self, now_s: float) -> Snapshot:
        used = sum(gpus for job in self.jobs.values() for _, gpus in job.held)
        return snapshot(*self.jobs.values(), nodes=[node("gn1", gpus=GPUS, used=used, cpus=64)], at_s=now_s)

    def run(self, day: list[Coming]) -> None:
        """Jobs that are requeued have saved their work, and wait for nothing but GPUs."""
        events: list[tuple[float, int, str, int]] = []
        left_s: dict[str, float] = {}
        at_s = NOW_S
        for number, one in enumerate(day, 1):
            at_s += one.after_s + 1e-3
            delay_s = one.delay_s
            left_s[str(number)] = one.run_s
            self.jobs[str(number)] = waiting(
                number, one.gpus, submit_s=at_s, eligible_s=math.nan, name=one.name, user=one.user,
                limit_s=2 * one.run_s if one.is_limited else math.inf, reason="Dependency" if delay_s else "Priority",
            )  # fmt: skip
            heapq.heappush(events, (at_s, 1, str(number), 0))
            if delay_s:
                heapq.heappush(events, (at_s + delay_s, 2, str(number), 0))
        coming, self.jobs = self.jobs, {}
        while events:
            at_s, kind, job_id, restarts = heapq.heappop(events)
            if kind == 0 and self.jobs[job_id].restarts > restarts:
                continue  # it was requeued before that end
            if kind == 3 and at_s < self.change_s() - 1e-6:
                continue  # something has happened before, and it is another time now
            if kind == 1:
                self.jobs[job_id] = coming[job_id]
                if coming[job_id].reason == "Dependency":
                    continue
            elif kind == 0:
                self.jobs[job_id] = over(self.jobs[job_id], at_s)
            if kind in (1, 2):
                self.jobs[job_id] = replace(self.jobs[job_id], reason="Priority", eligible_s=at_s)
            self.slurm.seen = self.seen(at_s)
            asyncio.run(self.engine.turn())
            for job in self.slurm.seen.jobs:
                if job.restarts > self.jobs[job.job_id].restarts:
                    left_s[job.job_id] -= at_s - self.jobs[job.job_id].start_s
                    job = replace(job, reason="Priority")
                self.jobs[job.job_id] = job
            for started in self.start(at_s):
                heapq.heappush(events, (at_s + left_s[started], 0, started, self.jobs[started].restarts))
                heapq.heappush(events, (at_s + SOON_S, 4, "", 0))  # a turn that sees what has started
            if at_s < self.change_s() < math.inf:
                heapq.heappush(events, (self.change_s(), 3, "", 0))

    def change_s(self) -> float:
        """When the policy wants to look again though nothing has happened; infinite: never."""
        jobs = StateFiles(self.config.state_dir).memory().jobs.values()
        return min((past.change_at_s for past in jobs), default=math.inf)

    def start(self, now_s: float) -> list[str]:
        """Starts by priority whatever has room, as Slurm's backfill does."""
        free = GPUS - sum(gpus for job in self.jobs.values() for _, gpus in job.held)
        found = []
        for job in sorted(self.jobs.values(), key=lambda job: -job.priority):
            if job.phase is not JobPhase.WAITING or not job.priority or not job.is_ready or job.gpus > free:
                continue
            self.jobs[job.job_id] = replace(
                job, phase=JobPhase.RUNNING, reason="None", held=(("gn1", job.gpus),), start_s=now_s
            )
            free -= job.gpus
            found.append(job.job_id)
        return found

    @property
    def times(self) -> LearnedTimes:
        found = self.engine._shadow_log.learned.times
        assert found is not None
        return found

    def promised(self) -> Gain:
        seen, before = self.slurm.seen, learned_before(self.config)
        gain = expected_gain(
            StateFiles(self.config.state_dir).ended().values(), groups(seen), seen, before.rules,
            may_preempt=self.config.preempt, requeue_cost_s=0.0, is_gating=self.config.gate,
            make_times=lambda: before.times(fits_at_once=True),
        )  # fmt: skip
        assert gain is not None
        return gain


@pytest.mark.parametrize("gate", [False, True], ids=["backfill", "gate"])
@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("fifo", ""),
        ("best-effort", ""),
        ("sf", ""),
        ("sjf", ""),
        ("srtf", ""),
        ("srsf", ""),
        ("las", ""),
        ("gittins", "first_fit_jobs=3"),
        ("qssf", ""),
    ],
)
@settings(max_examples=4, deadline=None)
@given(day=DAYS)
def test_the_gain_that_is_promised_is_what_a_slurm_that_obeys_brings(
    tmp_path_factory: pytest.TempPathFactory, policy: str, told: str, gate: bool, day: list[Coming]
) -> None:
    folder = tmp_path_factory.mktemp("slurm")
    live = Day(
        load_config(
            SlurmConfig, (),
            {"partitions": "gpu", "state_dir": str(folder), "admin_socket": str(folder / "s"), "policy": policy,
             "policy_settings": told, "gate": gate},
        )
    )  # fmt: skip
    live.run(day)

    gain = live.promised()

    assert gain.jobs == len(day)
    assert gain.policy.name == live.config.policy
    assert gain.policy.completion_s == pytest.approx(gain.slurm.completion_s, abs=1e-3)
    assert gain.policy.wait_s == pytest.approx(gain.slurm.wait_s, abs=1e-3)


@pytest.mark.parametrize("gate", [False, True], ids=["backfill", "gate"])
@pytest.mark.parametrize(
    ("policy", "told"),
    [
        *(pytest.param(name, "", marks=pytest.mark.long) for name in ("sf", "srtf", "srsf")),
        ("las", LIMITS),
        pytest.param("gittins", f"first_fit_jobs=3; {LIMITS}", marks=pytest.mark.long),
    ],
)
@settings(max_examples=6, deadline=None)
@given(day=DAYS)
def test_the_gain_that_is_promised_by_requeues_is_what_a_slurm_that_obeys_brings(
    tmp_path_factory: pytest.TempPathFactory, policy: str, told: str, gate: bool, day: list[Coming]
) -> None:
    folder = tmp_path_factory.mktemp("slurm")
    live = Day(
        load_config(
            SlurmConfig, (),
            {"partitions": "gpu", "state_dir": str(folder), "admin_socket": str(folder / "s"), "policy": policy,
             "policy_settings": told, "preempt": True, "gate": gate, "min_run_s": 0},
        )
    )  # fmt: skip
    live.run(day)

    gain = live.promised()

    assert gain.jobs == len(day)
    assert gain.policy.completion_s == pytest.approx(gain.slurm.completion_s, abs=1e-3)


# ---------------------------------------------------------------------- with models of run times


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was found to be far better than all else, so it is believed."""
    folder = tmp_path_factory.mktemp("models")
    record = LearnedTimes(GpuTimeParams(first="rolling"), history=past(repeating(400))).service.fit(1e9)
    assert record is not None
    worth = {"saving_model": 0.9, "saving_rolling": 0.3, "saving_gpus": 0.0, **dict.fromkeys(ERRORS, 0.0)}
    ModelStore(folder).save(replace(record, metrics={**record.metrics, **worth}))
    return folder


def day_of(folder: Path, *, gate: bool, **told: str) -> Day:
    given = {"partitions": "gpu", "state_dir": str(folder), "admin_socket": str(folder / "s"), "policy": "qssf"}
    return Day(load_config(SlurmConfig, (), {**given, "gate": gate, **told}))


@pytest.mark.long
@pytest.mark.parametrize("gate", [False, True], ids=["backfill", "gate"])
@settings(max_examples=6, deadline=None)
@given(day=DAYS)
def test_what_a_model_of_predict_fit_is_promised_to_gain_is_what_it_gains(
    tmp_path_factory: pytest.TempPathFactory, models: Path, gate: bool, day: list[Coming]
) -> None:
    live = day_of(tmp_path_factory.mktemp("slurm"), gate=gate, policy_models=str(models))
    live.run(day)

    gain = live.promised()

    assert live.times.service.source == "model"
    assert gain.jobs == len(day)
    assert gain.policy.completion_s == pytest.approx(gain.slurm.completion_s, abs=1e-3)
    assert gain.policy.wait_s == pytest.approx(gain.slurm.wait_s, abs=1e-3)


class FitsAtOnce(Fitter):
    """A fit takes no time, as in the simulation."""

    def __init__(self) -> None:
        super().__init__()
        self.fits: list[Fitted] = []
        self._found: Fitted | None = None

    def begin(self, lesson: Lesson) -> None:
        self._found = learned_from(lesson)
        self.fits.append(self._found)

    def take(self) -> Fitted | None:
        found, self._found = self._found, None
        return found


@pytest.mark.long
def test_models_that_are_fitted_on_the_way_are_in_the_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer jobs than usual are enough for a model here, and for finding it better."""
    monkeypatch.setattr(gpu_time, "LEAST_FIT", 40)
    monkeypatch.setattr(choose_estimator, "LEAST_JUDGED", 8)
    monkeypatch.setattr(choose_estimator, "JUDGED_EVERY", 5)
    monkeypatch.setattr(GpuTimeService, "rule", property(lambda _: UpdateRule(new_facts=40)))
    chance = Random(7)
    day = [
        Coming(
            after_s=chance.uniform(1.0, 60.0), run_s=10.0 * 3.0 ** (kind + chance.uniform(-0.2, 0.2)),
            gpus=(1, 2, 4, 8)[chance.randrange(4)], user="ann", name="abcde"[kind] * 5, is_limited=False, delay_s=0.0,
        )
        for kind in (chance.randrange(5) for _ in range(140))
    ]  # fmt: skip
    live = day_of(tmp_path, gate=True)
    fitter = live.engine._fitter = FitsAtOnce()
    live.run(day)

    gain = live.promised()

    assert len(fitter.fits) >= 2
    assert live.times.service.source == "model"
    assert gain.policy.completion_s == pytest.approx(gain.slurm.completion_s, abs=1e-3)
    assert gain.policy.wait_s == pytest.approx(gain.slurm.wait_s, abs=1e-3)
