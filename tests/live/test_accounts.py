"""Accounts, QOS and quotas in the live manager: at submission, while jobs wait, and across a restart."""

import asyncio
import os
import pwd
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from farside.config import ManagerConfig
from farside.config.check import manager_problems
from farside.config.manager import AccountRow, QosRow
from farside.scheduler.configured_rules import tenancy_of
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.view.view import show_job
from farside.scheduler.tenancy import Tenancy
from tests.live.test_api import an_api
from tests.live.world import World, rules

USER = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))
CONFIG = ManagerConfig(
    node="m",
    account=(
        AccountRow(name="ml", users=f"ann, {USER.pw_name}", quota_gpus=4),
        AccountRow(name="bio", users="bob", shares=2),
    ),
    qos=(QosRow(name="high", priority=5), QosRow(name="own", accounts="bio")),
    default_account="bio",
)


def tenancy() -> Tenancy:
    found = tenancy_of(CONFIG)
    assert found is not None
    return found


def world(order: str = "fifo", **settings: str) -> World:
    return World(replace(rules(order, **settings), tenancy=tenancy()), nodes=1, gpus=8)


def test_a_job_over_its_accounts_quota_waits_and_explains_it_and_starts_when_one_ends() -> None:
    w = world()
    first = w.submit(4, account="ml")
    second = w.submit(2, account="ml")
    other = w.submit(4, account="bio", user="bob")
    w.runs(first)

    lines = w.decider.why(second, w.now_s, str)
    assert (w.phase(second), w.phase(other)) == (Phase.WAITING, Phase.STARTING)
    assert lines[0] == "waits: account ml uses 4 of its 4 GPUs"
    w.exits(first)
    assert w.phase(second) is Phase.STARTING


def test_a_higher_qos_takes_the_gpus_of_a_preemptible_job_under_fifo() -> None:
    w = world()
    low = w.submit(8, account="bio", user="bob")
    w.runs(low)

    high = w.submit(8, account="bio", user="bob", qos="high")

    assert w.phase(low) is Phase.STOPPING
    w.exits(low, 143, "stopped")
    assert (w.phase(high), w.phase(low)) == (Phase.STARTING, Phase.WAITING)


def test_who_has_used_less_goes_first_also_after_the_manager_was_started_anew() -> None:
    w = world()
    first = w.submit(8, account="bio", user="bob")
    w.runs(first)
    w.pass_s(1000)
    again = w.submit(8, account="bio", user="bob")
    late = w.submit(4, account="ml")

    w.lead()
    lines = w.decider.why(again, w.now_s, str)
    w.exits(first)

    assert f"job {late} (4 GPUs), which is of an account that has used less of its share" in lines[0]
    assert (w.phase(late), w.phase(again)) == (Phase.STARTING, Phase.WAITING)


def test_a_jobs_stints_are_when_and_where_it_held_gpus() -> None:
    w = world()
    job = w.submit(2, account="bio", user="bob")
    w.runs(job)
    w.pass_s(50)
    begun_s = w.job(job).start_s
    w.exits(job)

    assert [(one.begin_s, one.end_s, one.places[0].gpus) for one in w.job(job).stints] == [(begun_s, begun_s + 50, 2)]


def test_what_is_submitted_is_charged_or_refused_in_one_line(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path, tenancy()) as api:
            client = api.as_uid(USER.pw_uid)

            async def told(**more: object) -> httpx.Response:
                return await client.post("/v1/jobs", json={"argv": ["true"], **more})

            made = (await told(qos="high")).json()["ids"][0]
            job = (await client.get(f"/v1/jobs/{made}")).json()
            refused = [await told(account="bio"), await told(account="x"), await told(qos="own"), await told(gpus=5)]

        assert (job["account"], job["qos"]) == ("ml", "high")
        assert {one.status_code for one in refused} == {422}
        assert [one.json()["detail"] for one in refused] == [
            f"account: user {USER.pw_name} does not belong to account bio; theirs: ml",
            "account: there is no account 'x'; yours: ml",
            "qos: QOS own is not for account ml; its: high",
            "gpus: 5 GPUs are more than account ml may have at once, 4 GPUs; ask for fewer",
        ]

    asyncio.run(run())


def test_without_declared_accounts_a_job_is_charged_to_whom_it_names() -> None:
    w = World(rules())

    named, unnamed = w.submit(account="anybody"), w.submit()

    assert tenancy_of(ManagerConfig(node="m")) is None
    assert [show_job(w.job(job)).account for job in (named, unnamed)] == ["anybody", "ann"]
    assert JobSpec(argv=("true",)).qos == ""


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        ({"account": (AccountRow(name="a"), AccountRow(name="a"))}, "account", "there is another 'a'"),
        ({"account": (AccountRow(name="a b"),)}, "account", "is no name"),
        ({"account": (AccountRow(name="a", users="x;y"),)}, "account", "is no user's name"),
        ({"default_account": "b"}, "default_account", "there is no [[account]] 'b'"),
        ({"default_qos": "b"}, "default_qos", "there is no [[qos]] 'b'"),
        ({"qos": (QosRow(name="q", accounts="b"),)}, "qos", "there is no [[account]] 'b'"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(settings: dict[str, object], key: str, words: str) -> None:
    problems = list(manager_problems(ManagerConfig(node="m", **settings)))  # type: ignore[arg-type]

    assert [(where, words in text) for where, text in problems] == [(key, True)]
