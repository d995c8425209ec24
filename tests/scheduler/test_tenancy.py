"""Accounts, quotas, QOS and fair share: what holds of any trace, and small cases reckoned by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.explain import Cause, explain, look
from farside.scheduler.fair_share import HIGHEST, LOWEST, FairShare, faded_gpu_s, levels
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Action, Preempt
from farside.scheduler.tenancy import Account, Qos, Tenancy
from tests.support.traces import flat_cluster, trace

ACCOUNTS = {
    "ml": Account(name="ml", quota_gpus=4, users=frozenset({"ann"})),
    "bio": Account(name="bio", shares=3, users=frozenset({"bob", "ann"})),
}
QUALITIES = {
    "high": Qos(name="high", priority=10, max_gpus_per_user=4, max_jobs_per_user=2),
    "meek": Qos(name="meek", priority=10, may_preempt=False),
    "own": Qos(name="own", accounts=frozenset({"bio"})),
}
TENANCY = Tenancy(accounts=ACCOUNTS, qualities=QUALITIES, half_life_s=1000.0)
PEOPLE = [("ann", "ml"), ("bob", "bio"), ("eve", "none")]
orders = st.sampled_from(
    [Fifo(), Fifo(is_strict=False), Srtf(), Las(limits_gpu_s=(30.0, 90.0)), Timeshare(quantum_s=9.0)]
)
Row = tuple[float, float, int, int, str]
rows_of_a_trace = st.lists(
    st.tuples(
        st.integers(0, 60).map(float),
        st.integers(1, 50).map(float),
        st.sampled_from([1, 1, 2, 4]),
        st.integers(0, 2),
        st.sampled_from(["", "", "high", "meek"]),
    ),
    min_size=1,
    max_size=25,
)


def of_tenants(rows: Sequence[Row]) -> list[TraceJob]:
    """Jobs of (submit_s, duration_s, gpus, who, QOS)."""
    plain = trace((submit_s, duration_s, gpus) for submit_s, duration_s, gpus, _, _ in rows)
    found = []
    for job in plain:
        _, _, _, who, qos = rows[int(job.job.job_id)]
        user, account = PEOPLE[who]
        found.append(replace(job, job=replace(job.job, user=user, account=account, qos=qos)))
    return found


class Caps:
    """Adds up what runs after each cycle, by itself, and holds it against the caps."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}

    def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        held: dict[str, int] = {}
        for row in domain.running:
            job = domain.jobs[row]
            keys = {job.account: job.gpus}
            if job.qos == "high":
                keys |= {f"gpus {job.user}": job.gpus, f"jobs {job.user}": 1}
            for key, count in keys.items():
                held[key] = held.get(key, 0) + count
        for key, count in held.items():
            self.most[key] = max(count, self.most.get(key, 0))


def simulate(
    order: OrderPolicy,
    jobs: list[TraceJob],
    tenancy: Tenancy = TENANCY,
    *,
    min_run_s: float = 0.0,
    reserve_after_s: float = math.inf,
) -> tuple[Sequence[Run], Caps]:
    caps = Caps()
    rules = Rules(
        order=order, placement=CountOnly(), tenancy=tenancy, min_run_s=min_run_s, reserve_after_s=reserve_after_s
    )
    return Simulation(flat_cluster(1, 8), rules, jobs, observers=(caps,)).run(), caps


# ---------------------------------------------------------------------- what holds of any trace


@settings(deadline=None, max_examples=60)
@given(rows_of_a_trace, orders, st.sampled_from([0.0, 5.0]), st.sampled_from([20.0, math.inf]))
def test_no_quota_is_ever_exceeded_and_every_job_ends_all_the_same(
    rows: list[Row], order: OrderPolicy, min_run_s: float, reserve_after_s: float
) -> None:
    jobs = of_tenants(rows)

    runs, caps = simulate(order, jobs, min_run_s=min_run_s, reserve_after_s=reserve_after_s)

    assert caps.most.get("ml", 0) <= 4
    assert all(count <= 4 for key, count in caps.most.items() if key.startswith("gpus"))
    assert all(count <= 2 for key, count in caps.most.items() if key.startswith("jobs"))
    assert all(math.isclose(run.held_s, job.duration_s) for run, job in zip(runs, jobs, strict=True))


@settings(deadline=None, max_examples=25)
@given(rows_of_a_trace, orders)
def test_a_tenancy_that_says_nothing_changes_nothing(rows: list[Row], order: OrderPolicy) -> None:
    jobs = [replace(job, job=replace(job.job, qos="")) for job in of_tenants(rows)]

    told, _ = simulate(order, jobs, Tenancy(half_life_s=0.0))

    silent = Simulation(flat_cluster(1, 8), Rules(order=order, placement=CountOnly()), jobs).run()
    assert [run.end_s for run in told] == [run.end_s for run in silent]


@pytest.mark.parametrize("order", [Fifo(), Las(limits_gpu_s=(3200.0,)), Timeshare()], ids=lambda order: order.name)
@pytest.mark.parametrize("shares", [1.0, 3.0])
def test_under_a_steady_load_of_all_what_accounts_use_comes_to_their_shares(order: OrderPolicy, shares: float) -> None:
    """One of three users submits three times as much as the others; all submit more than their part of 8 GPUs."""
    rows = [
        (float(at), 100.0, 1, who, "") for at in range(0, 3000, 30) for who, times in enumerate((1, 1, 3))
        for _ in range(times)
    ]  # fmt: skip
    heavy = Account(name="none", shares=shares)
    tenancy = Tenancy(accounts={"none": heavy}, half_life_s=1000.0, period_s=50.0)
    jobs = of_tenants(rows)
    used: dict[str, float] = {}

    class Meter:
        def __init__(self) -> None:
            self.last_s = 0.0
            self.held: dict[str, int] = {}

        def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
            if 1500 < now_s < 3000:
                for account, gpus in self.held.items():
                    used[account] = used.get(account, 0.0) + gpus * (now_s - self.last_s)
            self.last_s, self.held = now_s, dict(domain.book.quota_use.gpus_of)

    rules = Rules(order=order, placement=CountOnly(), tenancy=tenancy)
    Simulation(flat_cluster(1, 8), rules, jobs, observers=(Meter(),)).run()

    whole = sum(used.values())
    assert used["none"] / whole == pytest.approx(shares / (shares + 2), abs=0.05)
    assert used["ml"] / whole == pytest.approx(1 / (shares + 2), abs=0.05)


# ---------------------------------------------------------------------- quotas


def test_who_is_at_its_quota_waits_says_so_and_blocks_nobody() -> None:
    lines: list[tuple[str, ...]] = []

    def watch(now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        if now_s == 1 and not lines:
            lines.append(explain(domain, 1, now_s))
            assert look(domain, 1, now_s).cause is Cause.CAPPED

    jobs = of_tenants([(0, 10, 4, 0, ""), (1, 10, 2, 0, ""), (2, 10, 4, 1, "")])
    rules = Rules(order=Fifo(), placement=CountOnly(), tenancy=TENANCY)

    runs = Simulation(flat_cluster(1, 8), rules, jobs, observers=(watch,)).run()

    assert [run.start_s for run in runs] == [0, 10, 2]
    assert lines[0][0] == "waits: account ml uses 4 of its 4 GPUs"
    assert lines[0][1].startswith("it needs 2 GPUs")


def test_nothing_is_reserved_for_a_job_over_its_quota() -> None:
    rows: list[Row] = [(0, 100, 4, 0, ""), (1, 10, 4, 0, ""), *((float(at), 20.0, 4, 1, "") for at in range(2, 60, 10))]

    runs, _ = simulate(Fifo(is_strict=False), of_tenants(rows), reserve_after_s=10.0)

    assert [run.start_s for run in runs[2:]] == [2, 22, 42, 62, 82, 100]  # as soon as there is room
    assert runs[1].start_s == 102


# ---------------------------------------------------------------------- QOS


def test_a_higher_qos_goes_first_and_takes_gpus_even_where_the_policy_preempts_nobody() -> None:
    preempted: list[int] = []

    def watch(now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        preempted.extend(action.row for action in actions if isinstance(action, Preempt))

    rows: list[Row] = [(0, 50, 4, 1, ""), (1, 50, 4, 1, ""), (2, 10, 4, 1, ""), (3, 10, 4, 1, "high")]
    rules = Rules(order=Fifo(), placement=CountOnly(), tenancy=TENANCY)

    runs = Simulation(flat_cluster(1, 8), rules, of_tenants(rows), observers=(watch,)).run()

    assert runs[3].start_s == 3
    assert preempted == [1]  # the later of the two that ran
    assert runs[0].end_s == 50


def test_a_qos_that_may_not_preempt_waits_at_the_head() -> None:
    rows: list[Row] = [(0, 50, 8, 1, ""), (1, 10, 8, 1, ""), (2, 5, 8, 1, "meek")]

    runs, _ = simulate(Srtf(), of_tenants(rows))

    assert [run.start_s for run in runs] == [0, 1, 11]
    assert [run.preemptions for run in runs] == [1, 0, 0]


def test_a_job_that_is_reserved_for_takes_nothing_from_equals_where_the_policy_preempts_nobody() -> None:
    rows: list[Row] = [(0, 500, 8, 1, ""), (1, 10, 8, 1, "")]

    runs, _ = simulate(Fifo(), of_tenants(rows), reserve_after_s=20.0)

    assert runs[0].preemptions == 0
    assert runs[1].start_s == 500


# ---------------------------------------------------------------------- fair share


def test_use_fades_by_half_in_a_half_life_however_it_is_cut() -> None:
    whole = faded_gpu_s(2, 0, 300, 500, 100)
    parts = faded_gpu_s(2, 0, 120, 500, 100) + faded_gpu_s(2, 120, 300, 500, 100)
    later = faded_gpu_s(2, 0, 300, 600, 100)

    assert whole == pytest.approx(parts)
    assert later == pytest.approx(whole / 2)
    assert faded_gpu_s(2, 0, 300, 500, math.inf) == 600


def test_an_account_stands_by_its_use_over_its_share() -> None:
    assert levels({"a": 2.0, "b": 2.0}, {"a": 1, "b": 1}) == {"a": 0, "b": 0}
    assert levels({"a": 3.0, "b": 1.0}, {"a": 1, "b": 1}) == {"a": 0, "b": -1}
    assert levels({"a": 3.0, "b": 1.0}, {"a": 3, "b": 1}) == {"a": 0, "b": 0}
    assert levels({"a": 1.0, "b": 0.0}, {"a": 1, "b": 1000}) == {"a": HIGHEST, "b": LOWEST}
    assert levels({"a": 0.0}, {"a": 1}) == {"a": 0}


def test_what_was_held_before_a_restart_counts_as_if_it_had_been_watched() -> None:
    watched, told = FairShare(TENANCY), FairShare(TENANCY)
    watched.advance(0)
    watched.hold({"ml": 3})
    watched.advance(200)
    watched.hold({})
    watched.advance(700)

    told.note_past("ml", 3, 0, 200, 700)

    assert told.used_gpu_s("ml") == pytest.approx(watched.used_gpu_s("ml"))


# ---------------------------------------------------------------------- who may charge what


def test_a_job_goes_to_the_first_account_of_its_user_or_to_the_one_it_names() -> None:
    assert TENANCY.membership(user="ann", account="", qos="") == ("ml", "")
    assert TENANCY.membership(user="ann", account="bio", qos="own") == ("bio", "own")
    assert Tenancy().membership(user="eve", account="anything", qos="") == ("anything", "")
    assert replace(TENANCY, default_account="ml").membership(user="eve", account="", qos="")[0] == "ml"
    assert replace(TENANCY, default_qos="high").membership(user="bob", account="", qos="") == ("bio", "high")


@pytest.mark.parametrize(
    ("user", "account", "qos", "line"),
    [
        ("eve", "", "", "account: user eve belongs to none; ask an operator for one"),
        ("bob", "ml", "", "account: user bob does not belong to account ml; theirs: bio"),
        ("bob", "mll", "", "account: there is no account 'mll'; yours: bio"),
        ("ann", "", "gold", "qos: there is no QOS 'gold'; yours: high, meek"),
        ("ann", "", "own", "qos: QOS own is not for account ml; its: high, meek"),
    ],
)
def test_what_is_unknown_or_not_allowed_is_told_in_one_line(user: str, account: str, qos: str, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TENANCY.membership(user=user, account=account, qos=qos)

    assert str(refused.value) == line
