"""What a job is expected to take, as the API has it while the scheduler process answers, and while it does not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from farside import admin
from farside.cli.cluster_table import job_lines
from farside.scheduler.manager.decider.scheduler_process import ASK
from farside.scheduler.manager.view.view import NOTHING_EXPECTED, Expected
from tests.live.test_api import OTHER, Api, api_test

KNOWN = Expected(expected_s=90.0, expected_error=1.5, expected_from_jobs=7)


@pytest.mark.parametrize("answer", [KNOWN, NOTHING_EXPECTED])
def test_a_scheduler_process_that_is_away_is_told_from_one_that_knows_nothing(tmp_path: Path, answer: Expected) -> None:
    async def expected(told: Mapping[str, object]) -> object:
        return to_builtins(answer)

    async def test(api: Api) -> None:
        api.context.goes_by_run_times = True
        mine = api.as_uid(OTHER.pw_uid)
        job = (await mine.post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]

        async def told() -> dict[str, Any]:
            response = await mine.get(f"/v1/jobs/{job}")
            assert response.status_code == 200
            return {key: value for key, value in response.json().items() if key.startswith("expected_")}

        away = await told()
        async with admin.serve(tmp_path / ASK, {"expected": expected}):
            there = await told()
        away_again = (await mine.get(f"/v1/jobs/{job}")).json()

        assert there == to_builtins(answer)
        assert away.pop("expected_problem").startswith("the scheduler process does not answer: ")
        assert {*away.values()} == {None}
        shown = [line for line in job_lines(away_again, []) if "expected" in line]
        assert len(shown) == 1
        assert shown[0].startswith("  expected  nobody could be asked: the scheduler process does not answer: ")

    api_test(test, tmp_path)


def test_where_the_policy_does_not_ask_for_run_times_nobody_is_missed(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        mine = api.as_uid(OTHER.pw_uid)
        job = (await mine.post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]

        assert (await mine.get(f"/v1/jobs/{job}")).json()["expected_problem"] == ""

    api_test(test, tmp_path)
