"""Who submits from another machine, by munge: a manager over TCP and a real munged, which stands for those of both."""

import asyncio
import http.client
import json
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.client.manager_client import ManagerAddress, ManagerClient, find_manager
from farside.errors import ConfigError, FarsideError
from farside.munge import make_credential, request_mark
from farside.scheduler.manager.auth.token_file import Role, add_token
from farside.scheduler.manager.model.event import JobSubmitted
from tests.live.fake_agent import FakeNode
from tests.live.manager import Manager, running_manager
from tests.live.test_api import OTHER
from tests.support.munge import credential_of, munged

JOB = json.dumps({"argv": ["true"]}).encode()
NODES = ("GET", "/v1/nodes", "", b"")


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="farside-munge-") as folder:
        os.chmod(folder, 0o755)  # others shall reach the socket, as in /run/munge; pytest's folders are its user's own
        with munged(Path(folder)) as made:
            yield made


@pytest.fixture(scope="module")
def manager(socket: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    told = {"auth": "munge", "munge_socket": socket, "run_as": "submitter", "node_timeout_s": 3600}
    with running_manager(tmp_path_factory.mktemp("m"), **told) as made:
        asyncio.run(join(made))
        yield made


async def join(manager: Manager) -> None:
    async with FakeNode("n0").connected(manager.url, manager.node_token()):
        pass


def client_of(manager: Manager, socket: Path) -> ManagerClient:
    return ManagerClient(ManagerAddress(endpoint=f"http://127.0.0.1:{manager.port}", munge_socket=socket))


def sent(manager: Manager, credential: str, method: str, path: str, key: str, body: bytes) -> tuple[int, str]:
    """Status and what was said to a request as somebody else may have made it."""
    told = {"Authorization": f"Munge {credential}", "Content-Type": "application/json"}
    if key:
        told["Idempotency-Key"] = key
    connection = http.client.HTTPConnection("127.0.0.1", manager.port, timeout=60)
    try:
        connection.request(method, path, body or None, told)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_user_of_another_machine_is_proved_and_submits(socket: Path, tmp_path: Path) -> None:
    name = pwd.getpwuid(os.geteuid()).pw_name
    with running_manager(tmp_path, auth="munge", munge_socket=socket) as manager, client_of(manager, socket) as client:
        asyncio.run(join(manager))
        (job,) = client.post("jobs", body={"argv": ["true"]})["ids"]

        assert client.get("jobs", job, all="true")["user"] == name
        assert client.get("whoami")["proved"] is True
    submitted = next(one for one in manager.entries() if isinstance(one.event, JobSubmitted))
    assert isinstance(submitted.event, JobSubmitted)
    assert submitted.event.uid == os.geteuid()
    assert submitted.cause.endswith(f"{name}, munge uid {os.geteuid()}")


def test_the_job_is_that_of_who_made_the_credential_and_of_nobody_else(manager: Manager, socket: Path) -> None:
    request = ("POST", "/v1/jobs", "", JOB)
    credential = credential_of(OTHER.pw_uid, request_mark(*request), socket)

    status, said = sent(manager, credential, *request)

    assert status == 201
    (job,) = json.loads(said)["ids"]
    assert manager.job(job)["user"] == OTHER.pw_name
    foreign = credential_of(OTHER.pw_uid, request_mark("POST", "/v1/nodes/n0/drain", "", b"{}"), socket)
    assert sent(manager, foreign, "POST", "/v1/nodes/n0/drain", "", b"{}")[0] == 403  # no operator


def test_a_credential_that_was_heard_on_the_way_is_of_no_use(manager: Manager, socket: Path) -> None:
    credential = make_credential(request_mark(*NODES), socket)

    assert sent(manager, credential, *NODES)[0] == 200
    status, said = sent(manager, credential, *NODES)

    assert status == 401
    assert "was used before; each is good for one request" in said


@pytest.mark.parametrize(
    "other",
    [
        ("POST", "/v1/jobs", "", json.dumps({"argv": ["rm"]}).encode()),
        ("POST", "/v1/jobs", "another", JOB),
        ("GET", "/v1/jobs?all=true", "", b""),
        ("GET", "/v1/jobs/1", "", b""),
    ],
)
def test_a_credential_is_good_for_the_request_that_it_was_made_for(
    other: tuple[str, str, str, bytes], manager: Manager, socket: Path
) -> None:
    credential = make_credential(request_mark("POST", "/v1/jobs", "", JOB), socket)

    status, said = sent(manager, credential, *other)

    assert status == 401
    assert "was made for another request" in said


def test_a_query_and_a_name_that_needs_quoting_are_part_of_the_request(manager: Manager, socket: Path) -> None:
    with client_of(manager, socket) as client:
        assert client.get("jobs", all="true", user="a b&c=d") == {"jobs": []}
        with pytest.raises(FarsideError, match="you have no such job"):
            client.get("jobs", "a b ü%?")


def test_what_is_no_credential_or_of_another_cluster_is_refused(manager: Manager, tmp_path: Path, socket: Path) -> None:
    assert sent(manager, "MUNGE:nonsense:", *NODES)[0] == 401
    with munged(tmp_path) as foreign:
        status, said = sent(manager, make_credential(request_mark(*NODES), foreign), *NODES)

    assert (status, "was made with another key" in said) == (401, True)


def test_tokens_go_on_to_work_and_still_prove_nobody(manager: Manager) -> None:
    token = add_token(manager.tokens, "carl", Role.OPERATOR)
    with ManagerClient(ManagerAddress(endpoint=f"http://127.0.0.1:{manager.port}", token=token)) as client:
        assert client.get("whoami") == {"name": "carl", "role": "operator", "proved": False}
        with pytest.raises(FarsideError, match="a token does not prove who you are"):
            client.post("jobs", body={"argv": ["true"]})


@pytest.mark.long
def test_a_manager_that_was_not_told_of_munge_takes_no_credential(tmp_path: Path, socket: Path) -> None:
    told = "do not count here: the manager's `auth` is not munge"
    with (
        running_manager(tmp_path) as plain,
        client_of(plain, socket) as client,
        pytest.raises(FarsideError, match=told),
    ):
        client.get("nodes")


def test_the_command_line_is_told_to_use_munge_by_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, socket: Path
) -> None:
    monkeypatch.setenv("FARSIDE_MANAGER", "http://127.0.0.1:1")
    monkeypatch.setenv("FARSIDE_AUTH", "mumble")
    with pytest.raises(ConfigError, match="FARSIDE_AUTH 'mumble': is not known; use token or munge"):
        find_manager()

    monkeypatch.setenv("FARSIDE_AUTH", "munge")
    monkeypatch.setenv("FARSIDE_MUNGE_SOCKET", str(tmp_path / "none"))
    with pytest.raises(FarsideError, match="does not answer; systemctl start munge"):
        ManagerClient(find_manager()).get("nodes")
    assert find_manager("unix:/run/m.sock").munge_socket is None


@pytest.mark.parametrize("length", [5_000, 100_000])
def test_a_long_body_is_not_looked_into_until_munge_has_said_who_sends_it(
    length: int, manager: Manager, socket: Path
) -> None:
    wrong = b"[" * length
    body = json.dumps({"argv": ["true", "x" * length]}).encode()

    where = ("POST", "/v1/jobs", "")
    refused = sent(manager, credential_of(OTHER.pw_uid, b"another", socket), *where, wrong)
    taken = sent(manager, credential_of(OTHER.pw_uid, request_mark(*where, body), socket), *where, body)

    assert refused[0] == 401
    assert "munge" in refused[1]
    assert taken[0] == 201, taken
