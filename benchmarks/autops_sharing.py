"""Jobs of one model that share Aggregators, and a job that comes and goes beside another. Pure."""

from benchmarks.figure import Figure, Table
from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Placement
from farside.scheduler.sharing.aggregation.scale import WATCHED_ITERATIONS, Change, Scaling
from farside.scheduler.sim.aggregation.models import BY_NAME, MODELS

LIMITS = Limits(cycle_multiple=1, period_tolerance=0.0)
ASSUMED = (
    "Assumed, since the text has no table of them: iterations of "
    + ", ".join(f"{model.name} {model.iteration_s:g} s" for model in MODELS)
    + "; their servers are busy for "
    + ", ".join(f"{100 * model.busy_share:g} %" for model in MODELS)
    + " of the time. Figure 4.9 and Table 4.4 are possible only if AlexNet's are busy for 50 to 62.5 %."
)
# [autops Table 4.4]: what two jobs of four servers each save.
PAPER_SAVED = {"AlexNet": "0.375", "VGG19": "0.5", "AWD-LM": "0.5", "BERT": "0.5"}


def aggregators(model: str, jobs: int, servers: int) -> int:
    """How many so many equal jobs take."""
    placement = Placement(LIMITS)
    for number in range(jobs):
        assert placement.add(BY_NAME[model].profile(f"{number}", servers)) is None
    return len(placement.aggregators)


def sharing() -> Figure:
    """Figure 4.9 and Table 4.4."""
    names = [model.name for model in MODELS]
    by_jobs = tuple(
        (f"{jobs} ({2 * jobs} servers)", *(f"{aggregators(name, jobs, 2)}" for name in names)) for jobs in (1, 2, 3, 4)
    )
    saved = tuple((name, f"{1 - aggregators(name, 2, 4) / 8:g}", PAPER_SAVED[name]) for name in names)
    return Figure(
        key="autops-sharing",
        title="Aggregators of equal jobs",
        source="autops Figure 4.9, Table 4.4",
        tables=(
            Table(caption="Aggregators by jobs of 2 servers each", header=("jobs", *names), rows=by_jobs),
            Table(caption="Servers saved by two jobs of 4 servers each", header=("model", "ours", "paper"), rows=saved),
        ),
        notes=(
            ASSUMED,
            "Figure 4.9 is a picture without numbers. Of it the text says: 25 to 75 % fewer servers; AlexNet alone "
            "needs an extra one for two jobs; two serve four VGG19 jobs.",
        ),
    )


def scaling() -> Figure:
    """Figure 4.11, with its measured loss given."""
    both = Scaling(Placement(LIMITS))
    vgg, alexnet = BY_NAME["VGG19"].profile("VGG19", 2), BY_NAME["AlexNet"].profile("AlexNet", 2)
    rows: list[tuple[str, str, str, str]] = []

    def note(at: str, event: str, change: Change, paper: str) -> None:
        assert change.refused is None
        rows.append((f"{at} s", event, f"{len(both.placement.aggregators)}", paper))

    note("0", "VGG19 (2 servers) runs", both.arrive(vgg), "2")
    note("11", "AlexNet (2 servers) is placed", both.arrive(alexnet), "2")
    lost = both.measured("AlexNet", WATCHED_ITERATIONS, alexnet.iteration_s / (1 - 0.22))
    note("27", "AlexNet has lost 22 % over 100 iterations", lost, "3")
    note("42", "AlexNet ends", both.leave("AlexNet"), "2")
    return Figure(
        key="autops-scaling",
        title="A job that comes, is moved and goes",
        source="autops Figure 4.11",
        tables=(Table(caption="Aggregators", header=("at", "event", "ours", "paper"), rows=tuple(rows)),),
        notes=(
            "Times and the loss of 22 % are the paper's; what follows from them is decided here.",
            "After the exit VGG19 fits on one Aggregator, so the second goes back, too.",
            ASSUMED,
        ),
    )
