"""Whatever a policy says of two jobs is so."""

import math
import re

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from farside.scheduler.order.catalog import ORDERS, make_order
from farside.scheduler.order.distribution import Distribution
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.qssf import Cut, Qssf
from farside.scheduler.order.reason import why_first
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.table import JobColumns
from farside.units import parse_seconds

PAST = Distribution([10.0, 20.0, 400.0, 5000.0, 60000.0])
POLICIES: dict[str, OrderPolicy] = {
    **{name: make_order(name, {}) for name in ORDERS},
    "short slices": Timeshare(quantum_s=30.0),
    "las by start": Las(limits_gpu_s=(100.0, 1000.0), within="start_time"),
    "las without queues": Las(limits_gpu_s=()),
    "gittins that knows": Gittins(prior=PAST),
    "gittins without queues": Gittins(prior=PAST, limits_gpu_s=(), delta="best"),
    "qssf that knows": Qssf(cut=Cut(short_gpu_s=100.0, jobs=50), patience_s=50.0),
}  # fmt: skip

NEAR = st.sampled_from([0.0, 0.2, 9.7, 10.0, 10.4, 30.0, 99.99, 100.0, 3599.0, 3600.0, 3601.0, 70000.0])


@st.composite
def jobs(draw: st.DrawFn, number: int) -> JobColumns:
    """A job that waits or runs, at 100,000 s."""
    now_s, is_running = 100_000.0, draw(st.booleans())
    submit_s = draw(NEAR)
    since_s = max(submit_s, draw(st.sampled_from([now_s - 5, now_s - 29, now_s - 30, now_s - 900, draw(NEAR)])))
    has_run = is_running or draw(st.booleans())
    figures = dict.fromkeys(JobColumns._fields, 0.0) | {
        "submit_s": submit_s, "sequence": float(number), "gpus": draw(st.sampled_from([1.0, 2.0, 8.0])),
        "is_running": float(is_running), "executed_s": draw(NEAR) if has_run else 0.0, "waited_s": draw(NEAR),
        "since_s": since_s, "slice_s": now_s - since_s - draw(st.sampled_from([0.0, 20.0])) if is_running else 0.0,
        "first_start_s": min(since_s, submit_s + draw(NEAR)) if has_run else np.inf,
        "position": draw(NEAR) + number / 8, "remaining_s": draw(NEAR),
        "predicted_gpu_s": draw(st.one_of(NEAR, st.just(np.nan))),
    }  # fmt: skip
    return JobColumns(**{name: np.array([value]) for name, value in figures.items()})


def is_so(text: str, first: JobColumns, second: JobColumns, quantum_s: float) -> bool:
    """What each sentence claims: who runs, who waits, and the smaller of two numbers."""
    a, b = ({name: column.item() for name, column in job._asdict().items()} for job in (first, second))

    def service(job: dict[str, float]) -> float:
        return job["executed_s"] * job["gpus"]

    def state(job: dict[str, float]) -> str:
        if not job["is_running"]:
            return "waits"
        return "used" if job["slice_s"] >= quantum_s - 1e-6 else "runs"

    found = re.match(r"has waited for (.+) and more", text)
    patience_s = parse_seconds(found[1]) if found else math.inf
    states = state(a), state(b)
    claims = {
        r"equal by ": True,
        r"came .+ earlier": a["submit_s"] < b["submit_s"],
        r"runs .+, not |.+ s left against ": a["remaining_s"] < b["remaining_s"] or "GPU s" in text,
        r".+ GPU s left as the other": a["gpus"] < b["gpus"],
        r".+ GPU s left against ": a["remaining_s"] * a["gpus"] < b["remaining_s"] * b["gpus"],
        r"needs .+ GPUs, not ": a["gpus"] < b["gpus"],
        r"was given its GPUs .+ earlier, and neither": states == ("runs", "runs") and a["since_s"] < b["since_s"],
        r"has .+ of its slice left": states[0] == "runs" != states[1],
        r"has waited for its turn .+ longer": states == ("waits", "waits") and a["since_s"] < b["since_s"],
        r"was given its GPUs .+ later, and both": states == ("used", "used") and a["since_s"] > b["since_s"],
        r"waits, and the other has had its slice": states == ("waits", "used"),
        r"has had .+ of GPU time, not ": service(a) < service(b),
        r"is in Q\d, with .+; the other is in Q\d": service(a) < service(b),
        r"runs already": a["is_running"] > b["is_running"],
        r"comes before it in the list": a["position"] < b["position"],
        r"has run before": a["first_start_s"] < np.inf == b["first_start_s"],
        r"started .+ earlier": a["first_start_s"] < b["first_start_s"],
        r"has waited for .+ and more": a["since_s"] - a["submit_s"] >= patience_s > b["since_s"] - b["submit_s"],
        r"is expected to take .+; nothing is known": np.isnan(b["predicted_gpu_s"]) > np.isnan(a["predicted_gpu_s"]),
        r"is expected to take .+ in the mean, the other ": a["predicted_gpu_s"] < b["predicted_gpu_s"],
        r"is likelier to end soon": True,  # its figures are looked at by themselves
    }  # fmt: skip
    meant = [claim for form, claim in claims.items() if re.match(form, text)]
    return bool(meant) and any(meant)


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=80)
@given(one=jobs(0), other=jobs(1))
def test_what_is_said_of_any_two_jobs_is_so(name: str, one: JobColumns, other: JobColumns) -> None:
    order = POLICIES[name]
    ranks = [
        (*(key.item() for key in order.keys(job)), job.submit_s.item(), job.sequence.item()) for job in (one, other)
    ]  # fmt: skip
    first, second = (one, other) if ranks[0] < ranks[1] else (other, one)

    text = why_first(order, first, second)

    assert is_so(text, first, second, getattr(order, "quantum_s", 0.0)), text
    shares = re.search(r"ended at ([\d.e+-]+) a GPU hour, .* at ([\d.e+-]+)$", text)
    assert shares is None or float(shares[1]) > float(shares[2])


NEARLY_AN_HOUR, AN_HOUR = (
    JobColumns(**(dict.fromkeys(JobColumns._fields, np.zeros(1)) | {
        "gpus": np.ones(1), "executed_s": np.array([seconds]), "remaining_s": np.array([seconds]),
        "predicted_gpu_s": np.array([seconds]),
    }))
    for seconds in (3599.0, 3600.0)
)  # fmt: skip


@example("qssf", NEARLY_AN_HOUR, AN_HOUR)
@example("las without queues", NEARLY_AN_HOUR, AN_HOUR)
@given(st.sampled_from(["sjf", "srtf", "las without queues", "qssf"]), jobs(0), jobs(1))
def test_two_figures_that_differ_are_told_as_two(name: str, one: JobColumns, other: JobColumns) -> None:
    order = POLICIES[name]
    keys = [[key.item() for key in order.keys(job)] for job in (one, other)]
    assume(keys[0] < keys[1])

    text = order.why(one, other)

    told = re.findall(r"[\d.e+]+ (?:s|ms|us|min|h)\b", text)
    seconds = [parse_seconds(found) for found in told]
    if len(seconds) == 2 and "waited" not in text:
        assert told[0] != told[1]
        assert seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("since_s", "told"),
    [
        ((95.0, 90.0), "was given its GPUs 5 s earlier, and neither has used its slice"),
        ((10.0, 30.0), "was given its GPUs 20 s later, and both have used their slices"),
    ],
    ids=["neither", "both"],
)
def test_of_two_that_run_it_is_told_whose_turn_is_longer(since_s: tuple[float, float], told: str) -> None:
    zeros = {field: np.zeros(1) for field in JobColumns._fields}
    one, other = (
        JobColumns(**(zeros | {
            "is_running": np.ones(1), "since_s": np.array([at_s]), "slice_s": np.array([100.0 - at_s]),
        }))
        for at_s in since_s
    )  # fmt: skip

    assert why_first(POLICIES["short slices"], other, one) == told


@pytest.mark.parametrize("name", ["sjf", "srtf"])
def test_tenths_of_seconds_are_told_where_they_decide(name: str) -> None:
    figures = {field: np.zeros(1) for field in JobColumns._fields}
    short, long = (JobColumns(**(figures | {"remaining_s": np.array([value])})) for value in (9.9, 10.1))

    assert "9.9 s" in POLICIES[name].why(short, long)
    assert "10.1 s" in POLICIES[name].why(short, long)
