"""Listings as clients get them: whole, in part, and not again while they are as they were."""

import asyncio
from pathlib import Path

from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.model.event import Ending, HistoryForgotten, JobEnded
from farside.scheduler.manager.store.transaction import Draft
from tests.live.test_api import OTHER, THIRD, Api, api_test

LISTINGS = ("/v1/jobs", "/v1/jobs?all=true", "/v1/nodes")


def test_a_listing_is_sent_again_only_when_it_has_changed(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user, root = api.as_uid(OTHER.pw_uid), api.as_uid(0)
        await user.post("/v1/jobs", json={"argv": ["true"], "count": 3})

        for path in LISTINGS:
            first = await user.get(path)
            again = await user.get(path, headers={"If-None-Match": first.headers["etag"]})
            await user.post("/v1/jobs", json={"argv": ["true"]})
            await root.post("/v1/nodes/n0/drain", json={"reason": path})
            changed = await user.get(path, headers={"If-None-Match": first.headers["etag"]})

            assert (first.status_code, again.status_code, changed.status_code) == (200, 304, 200)
            assert (again.content, again.headers["etag"]) == (b"", first.headers["etag"])
            assert changed.json() != first.json()

    api_test(test, tmp_path)


def test_what_one_user_knows_is_no_answer_to_another(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})
        await api.as_uid(THIRD.pw_uid).post("/v1/jobs", json={"argv": ["true"]})

        for path in ("/v1/jobs", "/v1/jobs?all=true", "/v1/jobs?limit=1"):
            tag = (await api.as_uid(OTHER.pw_uid).get(path)).headers["etag"]
            for uid in (THIRD.pw_uid, 0):
                answer = await api.as_uid(uid).get(path, headers={"If-None-Match": tag})
                assert answer.status_code == 200

    api_test(test, tmp_path)


def test_a_part_of_a_listing_is_no_answer_to_who_asks_for_all(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = api.as_uid(OTHER.pw_uid)
        ids = (await user.post("/v1/jobs", json={"argv": ["true"], "count": 5})).json()["ids"]

        last = await user.get("/v1/jobs?limit=2")
        whole = await user.get("/v1/jobs", headers={"If-None-Match": last.headers["etag"]})

        assert [job["id"] for job in last.json()["jobs"]] == ids[-2:]
        assert [job["id"] for job in whole.json()["jobs"]] == ids

    api_test(test, tmp_path)


def test_an_operator_who_has_the_listing_already_has_looked_all_the_same(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})
        tag = (await api.as_uid(0).get("/v1/jobs")).headers["etag"]

        answer = await api.as_role(Role.OPERATOR).get("/v1/jobs", headers={"If-None-Match": tag})

        lines = (await api.as_uid(0).get("/v1/audit?actor=carl")).json()["entries"]
        assert answer.status_code == 304
        assert [(line["action"], line["object"]) for line in lines] == [("jobs", "jobs of all")]

    api_test(test, tmp_path)


def test_jobs_that_were_forgotten_are_listed_no_more(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = api.as_uid(OTHER.pw_uid)
        ids = (await user.post("/v1/jobs", json={"argv": ["true"], "count": 2})).json()["ids"]
        await user.get("/v1/jobs?all=true")
        generation = await asyncio.to_thread(api.log.store.take_lead, "test", api.log.now_s())
        ended_one = Draft(event=JobEnded(job_id=ids[0], ending=Ending.CANCELLED, reason="test"), cause="test")
        await asyncio.to_thread(api.log.store.append, [ended_one], api.log.now_s(), generation=generation)
        await api.log.catch_up()
        ended = (await user.get("/v1/jobs?all=true")).json()["jobs"]

        await api.log.write([HistoryForgotten(before_s=api.log.now_s() + 1.0)], "test")

        assert [job["state"] for job in ended] == ["cancelled", "waiting"]
        for path in ("/v1/jobs?all=true", "/v1/jobs"):
            assert [job["id"] for job in (await user.get(path)).json()["jobs"]] == ids[1:]

    api_test(test, tmp_path)
