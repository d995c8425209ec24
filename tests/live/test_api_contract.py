"""The API does what its OpenAPI document says: schemathesis against a running manager."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from starlette.types import Message, Scope

from farside.scheduler.manager.api.limit.body_size import COMMON_BYTES, LARGE_MAX, LIMITS_BYTES, NOBODY_BYTES, too_large
from farside.scheduler.manager.auth.token_file import Role, add_token
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

# The usual ones, and 413: a body with an entry too many may be too long as well, which is said first.
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, 503]
"""
EXAMPLES = 2
LIMIT_S = 580.0
JOBS_BYTES = LIMITS_BYTES["/v1/jobs"]


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
    async with FakeNode("n0").connected(manager.url, manager.node_token()):
        pass


def operations_of(manager: Manager) -> int:
    paths: Mapping[str, Mapping[str, object]] = manager.get("openapi.json")["paths"]
    return sum(map(len, paths.values()))


def asked(manager: Manager, folder: Path, *how: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Schemathesis, as an operator; ``how``: how many requests, and which."""
    (folder / "schemathesis.toml").write_text(SETTINGS)
    token = add_token(manager.tokens, "carl", Role.OPERATOR)
    return subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{manager.port}/v1/openapi.json",
            "--header", f"Authorization: Bearer {token}", *how,
            "--exclude-path", "/v1/overview/stream",  # it never ends; test_page.py reads it
            "--exclude-checks", "positive_data_acceptance",  # a job that is well told may be larger than the cluster
            "--continue-on-failure", "--no-color", "--warnings", "off", "--request-timeout", "60",
        ],
        cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_whatever_schemathesis_asks_is_answered_as_the_document_says(manager: Manager, tmp_path: Path) -> None:
    done = asked(manager, tmp_path, "--max-examples", str(EXAMPLES), "--generation-deterministic")

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
        assert answer.json()["detail"].startswith("body: is not JSON")

    api_test(test, tmp_path)


def test_a_body_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(JOBS_BYTES // 1024 + 1):
                yield b" " * 1024

        for body in (b" " * (JOBS_BYTES + 1), parts()):
            answer = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", content=body)

            assert (answer.status_code, answer.json()) == (413, {"detail": too_large(JOBS_BYTES)})

    api_test(test, tmp_path)


@pytest.mark.parametrize("is_told", [True, False])
def test_of_who_is_nobody_no_more_is_read_than_a_token_takes(is_told: bool, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        read_bytes = 0

        async def parts() -> AsyncIterator[bytes]:
            nonlocal read_bytes
            for _ in range(1024):
                read_bytes += 1024
                yield b" " * 1024

        for path, status in (("/v1/jobs", 401), ("/v1/reservations", 401), ("/ui/session", 413)):
            told = {"Content-Length": str(1 << 20)} if is_told else {}
            scope = http_scope(path, told)
            sent: list[Message] = []

            async def send(message: Message, sent: list[Message] = sent) -> None:
                sent.append(message)

            source = parts()

            async def receive(source: AsyncIterator[bytes] = source) -> Message:
                return {"type": "http.request", "body": await anext(source), "more_body": True}

            read_bytes = 0
            await api.app(scope, receive, send)

            assert sent[0]["status"] == status
            assert read_bytes <= (0 if is_told else NOBODY_BYTES + 1024)

    api_test(test, tmp_path)


def http_scope(path: str, headers: Mapping[str, str]) -> Scope:
    """A POST by TCP, without any proof of who calls."""
    return {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"manager"), *((name.lower().encode(), told.encode()) for name, told in headers.items())],
        "client": ("192.0.2.7", 4711), "server": ("manager", 80), "http_version": "1.1", "scheme": "http",
    }  # fmt: skip


def test_only_operators_may_reserve_a_hundred_thousand_nodes_at_once(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"nodes": [f"node-{at}" for at in range(100_000)], "from_s": 9e9, "to_s": 9.1e9}

        by_root = await api.as_uid(0).post("/v1/reservations", json=body)
        by_user = await api.as_uid(OTHER.pw_uid).post("/v1/reservations", json=body)

        assert (by_root.status_code, by_root.json()["detail"]) == (422, "nodes: there is no node node-0")
        assert (by_user.status_code, by_user.json()["detail"]) == (413, too_large(COMMON_BYTES))

    api_test(test, tmp_path)


def test_the_largest_job_fits_however_its_letters_are_written(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        words = ["\u00e9" * 65_000] * 2  # each letter is two bytes to the node, and six in what json.dumps sends
        body = json.dumps({"argv": ["true", *words], "env": {"A": words[0], "B": words[1]}})
        assert len(body) > 1.5e6

        told = {"Content-Type": "application/json"}
        answer = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", content=body, headers=told)

        assert answer.status_code == 201

    api_test(test, tmp_path)


def test_one_caller_sends_a_few_large_bodies_at_a_time_and_others_theirs_meanwhile(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        go_on = asyncio.Event()
        reading = 0

        async def slow() -> AsyncIterator[bytes]:
            nonlocal reading
            yield b" " * (COMMON_BYTES + 1)
            reading += 1
            await go_on.wait()

        body = b" " * (COMMON_BYTES + 1)
        async with asyncio.TaskGroup() as group:
            for _ in range(LARGE_MAX):
                group.create_task(api.as_uid(OTHER.pw_uid).post("/v1/jobs", content=slow()))
            async with asyncio.timeout(LIMIT_S):
                while reading < LARGE_MAX:
                    await asyncio.sleep(0)
            one_more = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", content=body)
            another = await api.as_uid(0).post("/v1/jobs", content=body)
            go_on.set()
        afterwards = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", content=body)

        assert (one_more.status_code, one_more.headers["retry-after"]) == (503, "1")
        assert (another.status_code, afterwards.status_code) == (422, 422)

    api_test(test, tmp_path)


ROLE = {"name": "worker", "argv": ["x"]}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"argv": [1] * 5000}, "argv: at most 4,096, not 5,000; put them in a file"),
        ({"argv": [1] * 4096}, "argv.0: expected text, got a whole number"),
        ({"argv": ["x"], "after": [1] * 1000}, "after.0: expected text, got a whole number"),
        ({"argv": ["x"], "after": ["1"] * 1001}, "after: at most 1,000, not 1,001; wait for one that waits for them"),
        ({"env": {str(at): 1 for at in range(2000)}}, "env: at most 1,024, not 2,000; put them in a file"),
        ({"roles": [{}] * 17}, "roles: at most 16, not 17; give processes that are alike one role"),
        ({"roles": [{**ROLE, "argv": [1] * 4096}] * 16}, "roles.0.argv.0: expected text, got a whole number"),
        ({str(at): 1 for at in range(1000)}, "body: has 1000 keys, and most are unknown"),
    ],
)  # fmt: skip
def test_a_body_of_many_wrong_things_is_one_short_line(body: object, detail: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json=body)

        assert (answer.status_code, answer.json()["detail"]) == (422, detail)

    api_test(test, tmp_path)


def test_of_many_mistakes_the_first_ten_are_told(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"k" * 1000 + str(at): 1 for at in range(12)})

        assert answer.json()["detail"].count("no such key") == 10
        assert answer.json()["detail"].endswith("; and 2 more")
        assert len(answer.text) < 2000

    api_test(test, tmp_path)
