"""What deployments of inference tell the manager: whose it is, how long it counts, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from farside.scheduler.manager.api.limit.body_size import COMMON_BYTES
from farside.scheduler.manager.model.spec import spec_problems
from farside.scheduler.manager.view.deployments import (
    DEPLOYMENTS_MAX,
    FORGOTTEN_S,
    REPORT_BYTES_MAX,
    USER_DEPLOYMENTS_MAX,
    DeployedModel,
    DeploymentBody,
    Deployments,
)
from farside.scheduler.manager.view.usage import By, usage_of
from tests.live.test_api import OTHER, THIRD, Api, api_test
from tests.live.world import World, rules, submitted_spec

MODEL: dict[str, Any] = {
    "name": "net", "slo_ms": 100, "rate": 20.0, "planned_rate": 25.0, "p99_ms": 40.0, "met": 5, "violated": 1,
    "dropped": 0,
}  # fmt: skip
GPU: dict[str, Any] = {
    "job": "3", "node": "n1", "state": "running", "left_s": 90.0,
    "parts": [{"part_pct": 60, "models": "net x4", "cycle_ms": 20.0, "busy_pct": 55.0}],
}  # fmt: skip
TOLD: dict[str, Any] = {"front": "h:/d/serving.toml", "ready": True, "gpus": [GPU], "models": [MODEL], "changes": []}


def test_users_see_their_own_deployments_and_an_operator_all_and_the_overview_has_them(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        mine = api.as_uid(OTHER.pw_uid)
        put = await mine.put("/v1/deployments/vision", json=TOLD)
        seen = [(await api.as_uid(uid).get("/v1/deployments")).json() for uid in (OTHER.pw_uid, THIRD.pw_uid, 0)]
        glimpse = (await mine.get("/v1/overview")).json()

        assert put.status_code == 204
        assert [[one["name"] for one in told["deployments"]] for told in seen] == [["vision"], [], ["vision"]]
        assert seen[0]["deployments"][0]["user"] == OTHER.pw_name
        assert glimpse["deployments"][0]["gpus"] == [GPU]

    api_test(test, tmp_path)


def test_a_name_is_one_fronts_until_that_has_ended(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        mine = api.as_uid(OTHER.pw_uid)
        await mine.put("/v1/deployments/vision", json=TOLD)

        other = await mine.put("/v1/deployments/vision", json={**TOLD, "front": "elsewhere"})
        another_user = await api.as_uid(THIRD.pw_uid).put("/v1/deployments/vision", json={**TOLD, "front": "x"})
        wrong_end = await mine.delete("/v1/deployments/vision", params={"front": "elsewhere"})
        end = await mine.delete("/v1/deployments/vision", params={"front": TOLD["front"]})
        after = await mine.put("/v1/deployments/vision", json={**TOLD, "front": "elsewhere"})

        assert (other.status_code, another_user.status_code) == (409, 204)
        assert "is run by h:/d/serving.toml; end that one, or choose another name" in other.json()["detail"]
        assert (wrong_end.status_code, end.status_code, after.status_code) == (404, 204, 204)

    api_test(test, tmp_path)


def test_what_makes_no_sense_is_refused_in_one_line(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        mine = api.as_uid(OTHER.pw_uid)
        for name, body, line in (
            ("a b", TOLD, "name: letters, digits, dots and dashes, 64 at most"),
            ("v", {**TOLD, "gpus": [{**GPU, "left_s": -1}]}, "gpus.0.left_s: "),
            ("v", {**TOLD, "models": [MODEL] * 257}, "models: at most 256, not 257"),
            ("v", {**TOLD, "more": 1}, "more: no such key"),
            ("v", {"ready": True}, "front: is missing"),
        ):
            refused = await mine.put(f"/v1/deployments/{name}", json=body)
            assert refused.status_code == 422
            assert line in refused.json()["detail"]
        large = await mine.put("/v1/deployments/v", content=b" " * (65 << 10))
        assert large.status_code == 413

    api_test(test, tmp_path)


def test_a_user_who_names_many_deployments_keeps_no_other_user_out(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        mine = api.as_uid(OTHER.pw_uid)
        took = [(await mine.put(f"/v1/deployments/d{number}", json=TOLD)).status_code for number in range(64)]
        refused = await mine.put("/v1/deployments/one-more", json=TOLD)
        other = await api.as_uid(THIRD.pw_uid).put("/v1/deployments/vision", json=TOLD)

        assert took == [204] * USER_DEPLOYMENTS_MAX + [429] * (64 - USER_DEPLOYMENTS_MAX)
        assert refused.json()["detail"].endswith(f"deployments of {OTHER.pw_name} say how they are already")
        assert refused.headers["retry-after"] == "10"
        assert other.status_code == 204

    api_test(test, tmp_path)


def test_what_is_not_told_again_is_forgotten_and_there_are_so_many_at_most() -> None:
    table, body = Deployments(), DeploymentBody(front="f", ready=True)
    for number in range(DEPLOYMENTS_MAX):
        assert table.tell(f"d{number}", f"user{number // USER_DEPLOYMENTS_MAX}", body, 0.0) is None

    refused = table.tell("one-more", "ann", body, 1.0)
    assert refused == (f"{DEPLOYMENTS_MAX} deployments say how they are already", True)
    assert table.tell("d0", "user0", body, FORGOTTEN_S) is None
    assert [one.name for one in table.of(None, FORGOTTEN_S + 1)] == ["d0"]
    assert table.of("bob", FORGOTTEN_S + 1) == ()


def test_a_report_may_be_as_large_as_the_manager_takes() -> None:
    assert REPORT_BYTES_MAX == COMMON_BYTES


def test_a_report_serves_those_of_its_users_jobs_that_name_the_deployment_and_are_named_in_it(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        fronts = api.sessions.fronts
        body = {"argv": ["true"], "time_limit_s": 60}
        ids = [
            (await api.as_uid(uid).post("/v1/jobs", json={**body, **more})).json()["ids"][0]
            for uid, more in (
                (OTHER.pw_uid, {"deployment": "vision"}), (OTHER.pw_uid, {"deployment": "vision"}),
                (OTHER.pw_uid, {"deployment": "speech"}), (OTHER.pw_uid, {}), (THIRD.pw_uid, {"deployment": "vision"}),
            )
        ]  # fmt: skip
        named = [{**GPU, "job": job_id} for job_id in (ids[0], *ids[2:], "999")]
        put = await api.as_uid(OTHER.pw_uid).put("/v1/deployments/vision", json={**TOLD, "gpus": named})

        began_s = fronts.served_s("nobody", "vision")
        served = [one for one in ids if fronts.served_s(OTHER.pw_name, "vision", one) > began_s]
        assert (put.status_code, served) == (204, ids[:1])

    api_test(test, tmp_path)


def test_a_front_sees_the_leases_that_it_names_and_nothing_of_other_jobs(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        mine, body = api.as_uid(OTHER.pw_uid), {"argv": ["true"], "time_limit_s": 60}
        ids = [
            (await api.as_uid(uid).post("/v1/jobs", json={**body, **more})).json()["ids"][0]
            for uid, more in (
                (OTHER.pw_uid, {"deployment": "vision"}), (OTHER.pw_uid, {"deployment": "speech"}), (OTHER.pw_uid, {}),
                (THIRD.pw_uid, {"deployment": "vision"}),
            )
        ]  # fmt: skip
        named = ",".join([*ids, ids[0], "999", ""])
        told = (await mine.get("/v1/deployments/vision/leases", params={"ids": named})).json()
        alone = (await mine.get(f"/v1/jobs/{ids[0]}")).json()

        assert [one["id"] for one in told["jobs"]] == ids[:1]
        assert {key: alone[key] for key in told["jobs"][0]} == told["jobs"][0]
        assert told["nodes"] == {}
        assert (await mine.get("/v1/deployments/vision/leases")).json() == {"jobs": [], "nodes": {}}
        assert (await mine.get("/v1/deployments/vision/leases", params={"ids": "1,é"})).status_code == 422

    api_test(test, tmp_path)


def test_the_leases_of_a_deployment_are_served_while_its_front_is_heard(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        clock, fronts = api.log.clock, api.sessions.fronts
        begun_s = fronts.served_s(OTHER.pw_name, "vision")
        before_s = clock.now_s()
        await api.as_uid(OTHER.pw_uid).put("/v1/deployments/vision", json=TOLD)
        told_s = fronts.served_s(OTHER.pw_name, "vision")
        refused = await api.as_uid(OTHER.pw_uid).put("/v1/deployments/vision", json={**TOLD, "front": "elsewhere"})

        assert begun_s <= before_s <= told_s <= clock.now_s()
        assert refused.status_code == 409
        assert fronts.served_s(OTHER.pw_name, "vision") == told_s
        assert fronts.served_s(THIRD.pw_name, "vision") == fronts.served_s(OTHER.pw_name, "speech") == begun_s

    api_test(test, tmp_path)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"gpus": 8, "time_limit_s": 60}, "a lease is one process with 1 GPU, and this job has 8 GPUs"),
        (
            {"roles": [{"name": "w", "count": 1, "gpus": 1, "argv": ["true"]}], "argv": [], "time_limit_s": 60},
            "a lease is one process with 1 GPU, and this job has roles",
        ),
        ({"gpus": 1}, "a lease has a time limit, and this job has none"),
    ],
)
def test_a_job_that_is_no_lease_names_no_deployment(told: dict[str, Any], line: str) -> None:
    base = {"argv": ["true"], "deployment": "vision"}
    told = {key: value for key, value in (base | told).items() if value != []}

    (problem,) = spec_problems(submitted_spec(told))

    assert problem.startswith(f"deployment: {line}; ")
    assert not [*spec_problems(submitted_spec({**base, "time_limit_s": 60}))]


def test_gpu_hours_of_deployments_are_those_of_their_jobs_alone() -> None:
    w = World(rules(), nodes=1)
    lease, other = w.submit(1, user="ann", deployment="vision"), w.submit(1, user="ann")
    w.runs(lease)
    w.runs(other)
    w.pass_s(60)

    (used,) = usage_of(w.state.jobs.values(), By.DEPLOYMENT, 0, w.now_s, 500.0)

    assert (used.name, used.user, used.gpu_s, used.jobs) == ("vision", "ann", 60, 1)


def test_deployments_of_one_name_of_two_users_have_a_row_each() -> None:
    w = World(rules(), nodes=1)
    for user in ("ann", "bob"):
        w.runs(w.submit(1, user=user, deployment="vision"))
        w.pass_s(60)

    used = usage_of(w.state.jobs.values(), By.DEPLOYMENT, 0, w.now_s, 500.0)

    assert [(one.name, one.user, one.gpu_s) for one in used] == [("vision", "ann", 120), ("vision", "bob", 60)]
    assert [one.user for one in usage_of(w.state.jobs.values(), By.USER, 0, w.now_s, 500.0)] == ["", ""]


def test_a_models_numbers_fit_what_a_front_tells() -> None:
    assert set(DeployedModel.__struct_fields__) == set(MODEL)
