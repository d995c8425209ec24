"""Limits of a job's keys: declared once, held where a job is submitted, shown in the document, unknown to the log."""

from pathlib import Path
from typing import Any

import msgspec

from farside.scheduler.manager.field_limit import limits_of
from farside.scheduler.manager.model.codec import decode_event
from farside.scheduler.manager.model.event import JobSubmitted
from farside.scheduler.manager.model.spec import MAX_GPUS, JobBody, JobSpec, spec_problems
from tests.live.test_api import OTHER, Api, api_test
from tests.live.world import submitted_spec

BEYOND: dict[str, Any] = {"gpus": MAX_GPUS + 1, "retries": -1, "name": "two\nlines", "output": "x" * 5000}


def test_every_key_beyond_its_limit_is_one_line_that_names_it() -> None:
    problems = list(spec_problems(submitted_spec({"argv": ["true"], **BEYOND})))

    assert [line.partition(":")[0] for line in problems] == ["gpus", "name", "output", "retries"]


def test_only_a_job_without_gpus_hears_that_it_has_none() -> None:
    too_many, none = (next(spec_problems(submitted_spec({"argv": ["true"], "gpus": n}))) for n in (MAX_GPUS + 1, 0))

    assert too_many == "gpus: must be 0 to 100000, is 100001"
    assert none == "gpus: a job without GPUs has colocate = true; add that, or ask for 1 or more"


def test_a_log_keeps_jobs_that_were_taken_under_other_limits() -> None:
    spec = JobSpec(argv=("true",), **BEYOND)
    body = msgspec.json.encode(JobSubmitted(spec=spec, user="ann"))

    assert decode_event("JobSubmitted", body) == JobSubmitted(spec=spec, user="ann")


def test_the_document_has_the_meaning_and_the_limits_of_each_key(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        document = (await api.as_role(None).get("/v1/openapi.json")).json()
        keys = document["components"]["schemas"]["JobBody"]["properties"]

        assert set(keys) == set(JobBody.__struct_fields__)
        assert all("description" in key for key in keys.values())
        assert (keys["gpus"]["minimum"], keys["gpus"]["maximum"]) == (0, MAX_GPUS)
        assert "maximum" not in keys["cpus_per_gpu"]
        assert keys["argv"]["maxItems"] == limits_of(JobBody)["argv"]["maxItems"]

    api_test(test, tmp_path)


def test_what_the_manager_shows_of_a_job_may_be_submitted_again(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_uid(OTHER.pw_uid)
        roles = [{"name": "worker", "argv": ["w"]}, {"name": "ps", "argv": ["p"], "gpus": 0, "service": True}]
        (first,) = (await client.post("/v1/jobs", json={"roles": roles, "checkpoint_dir": ""})).json()["ids"]
        shown = (await client.get(f"/v1/jobs/{first}")).json()["spec"]

        (again,) = (await client.post("/v1/jobs", json=shown)).json()["ids"]

        assert api.log.state.jobs[again].spec == api.log.state.jobs[first].spec

    api_test(test, tmp_path)
