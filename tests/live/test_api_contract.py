"""The API does what its OpenAPI document says: schemathesis against a running manager."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from farside.scheduler.live.api.body_limit import BODY_BYTES_MAX, TOO_LARGE
from farside.scheduler.live.api.caller import Role, add_token
from tests.live.fake_agent import FakeNode
from tests.live.manager import Manager, running_manager
from tests.live.test_api import OTHER, Api, api_test

# Made-up ids name nothing: half of the requests are about what is there. And made-up jobs are larger than the cluster.
SETTINGS = """
[dictionaries]
jobs = { values = ["1", "2", "77"] }
nodes = { values = ["n0", "n1", "n77"] }
reservations = { values = ["m1", "m77"] }
few = { values = [1, 2, 4] }

[parameters]
"path.job_id" = { dictionary = "jobs", probability = 0.5 }
"path.name" = { dictionary = "nodes", probability = 0.5 }
"path.reservation_id" = { dictionary = "reservations", probability = 0.5 }
"body.gpus" = { dictionary = "few", probability = 0.7 }
"""
EXAMPLES = 8
LIMIT_S = 280.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """One with a node, jobs and a reservation, on which everything may be done by token."""
    with running_manager(tmp_path / "manager", token_submit="true", node_timeout_s=3600) as made:
        asyncio.run(join(made))
        made.submit("true")
        made.submit("true", hold=True)
        made.post("reservations", body={"nodes": ["n0"], "from_s": 9e9, "to_s": 9.1e9})
        yield made


async def join(manager: Manager) -> None:
    async with FakeNode("n0").connected(manager.url, manager.node_token):
        pass


def operations_of(manager: Manager) -> int:
    paths: Mapping[str, Mapping[str, object]] = manager.get("openapi.json")["paths"]
    return sum(map(len, paths.values()))


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_whatever_schemathesis_asks_is_answered_as_the_document_says(manager: Manager, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    token = add_token(manager.tokens, "carl", Role.OPERATOR)

    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{manager.port}/v1/openapi.json",
            "--header", f"Authorization: Bearer {token}", "--max-examples", str(EXAMPLES), "--generation-deterministic",
            "--exclude-path", "/v1/overview/stream",  # it never ends; test_page.py reads it
            "--exclude-checks", "positive_data_acceptance",  # a job that is well told may be larger than the cluster
            "--continue-on-failure", "--no-color", "--warnings", "off", "--request-timeout", "60",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Tested: {operations_of(manager) - 1}" in done.stdout  # none was left out that could not be understood
    assert "Traceback" not in manager.log()


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("DELETE", "/v1/jobs", "GET, POST"), ("POST", "/v1/jobs/1", "GET"), ("PATCH", "/v1/nodes/n0/drain", "POST")],
)
def test_a_method_that_is_not_there_is_told_all_that_are(method: str, path: str, allow: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.as_uid(0).request(method, path)

        assert (answer.status_code, answer.headers["allow"]) == (405, allow)

    api_test(test, tmp_path)


@pytest.mark.parametrize("body", [b'{"argv"', b'{"argv": ["\xff"]}', b"\xff\xfe"])
def test_a_body_that_is_no_json_is_one_clear_line(body: bytes, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        told = {"Content-Type": "application/json"}
        answer = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", content=body, headers=told)

        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("body: is no JSON")

    api_test(test, tmp_path)


def test_a_body_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(BODY_BYTES_MAX // 1024 + 1):
                yield b" " * 1024

        for body in (b" " * (BODY_BYTES_MAX + 1), parts()):
            answer = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", content=body)

            assert (answer.status_code, answer.json()) == (413, {"detail": TOO_LARGE})

    api_test(test, tmp_path)
