"""When models are fitted anew, and who hears of it."""

from farside.scheduler.predict.model_update import Orchestrator, UpdateEngine
from farside.scheduler.predict.service import (
    Advice,
    Expect,
    Fact,
    JobEnded,
    JobSubmitted,
    ModelRecord,
    UpdateRule,
)
from tests.predict.log import job

RULE = UpdateRule(every_s=100.0, growth=1.0, drift=0.5, new_facts=10)


class Echo:
    """A service without a model of any use: it counts."""

    def __init__(self, name: str = "echo") -> None:
        self.name = name
        self.features: tuple[str, ...] = ()
        self.rule = RULE
        self.learnable = 0
        self.drift = 0.0
        self.fits: list[float] = []

    def observe(self, fact: Fact) -> tuple[Advice, ...]:
        if isinstance(fact, JobEnded):
            self.learnable += 1
            return ()
        assert isinstance(fact, JobSubmitted)
        return (Expect(sequence=fact.job.sequence, gpu_s=float(len(self.fits)), source=self.name),)

    def fit(self, now_s: float) -> ModelRecord | None:
        self.fits.append(now_s)
        return ModelRecord(
            service=self.name, text="", features=(), trained_from_s=0.0, trained_to_s=now_s,
            trained_on=self.learnable, params={}, tables={},
        )  # fmt: skip

    def use(self, record: ModelRecord) -> None:
        raise NotImplementedError


def ended(at_s: float) -> JobEnded:
    return JobEnded(at_s=at_s, job=job(int(at_s)), ran_s=1.0)


def test_nothing_is_fitted_to_too_little() -> None:
    echo = Echo()
    orchestrator = Orchestrator([echo])

    for at in range(9):
        orchestrator.tell(ended(1000.0 * at))

    assert echo.fits == []


def test_a_model_is_fitted_when_much_is_new_and_then_when_its_time_comes() -> None:
    echo = Echo()
    orchestrator = Orchestrator([echo])

    for at in range(35):
        orchestrator.tell(ended(10.0 * at))

    assert [update.reason for update in orchestrator.updates] == [
        "much is new",
        "its time has come",
        "its time has come",
    ]
    assert echo.fits == [90.0, 190.0, 290.0]


def test_drift_makes_for_a_fit() -> None:
    echo = Echo()
    engine = UpdateEngine(echo)
    echo.learnable = 1000
    engine.update(0.0, "first")
    echo.learnable += 10
    assert engine.check(1.0) is None

    echo.drift = 0.6
    made = engine.check(2.0)

    assert made is not None
    assert made.reason == "its errors have grown"


def test_a_clock_that_jumps_back_delays_a_fit_and_no_more() -> None:
    echo = Echo()
    engine = UpdateEngine(echo)
    echo.learnable = 1000
    engine.update(1000.0, "first")
    echo.learnable += 500

    assert engine.check(-5000.0) is None
    assert engine.check(1100.0) is not None


def test_models_are_handed_to_who_keeps_them() -> None:
    kept: list[ModelRecord] = []
    orchestrator = Orchestrator([Echo()], keep=kept.append)

    for at in range(10):
        orchestrator.tell(ended(float(at)))

    assert [record.trained_on for record in kept] == [10]


def test_services_are_heard_in_their_order_and_know_nothing_of_each_other() -> None:
    first, second = Echo("first"), Echo("second")

    told = Orchestrator([first, second]).tell(JobSubmitted(at_s=0.0, job=job(7)))

    assert [one.source for one in told if isinstance(one, Expect)] == ["first", "second"]


def test_who_comes_is_answered_by_the_model_before_the_fit() -> None:
    echo = Echo()
    orchestrator = Orchestrator([echo])
    echo.learnable = 10

    told = orchestrator.tell(JobSubmitted(at_s=0.0, job=job(1)))

    assert [one.gpu_s for one in told if isinstance(one, Expect)] == [0.0]
    assert echo.fits == [0.0]
