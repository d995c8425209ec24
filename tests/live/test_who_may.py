"""Who may call what: every route there is, tried by everybody there is."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from starlette.types import Message

from farside.agent import protocol
from farside.agent.mutual_proof import HEADER, NONCE_BYTES, key_of, offer
from farside.errors import ConfigError
from farside.scheduler.manager.auth.token_file import Role, add_token, read_tokens
from farside.scheduler.manager.auth.web_session import COOKIE
from farside.scheduler.manager.nodes import sessions as sessions_module
from tests.live.fake_agent import FakeNode
from tests.live.test_api import OTHER, Api, an_api, api_test

ALL = frozenset(Role)
PEOPLE = frozenset({Role.USER, Role.OPERATOR})
OPERATOR = frozenset({Role.OPERATOR})
NOBODY: frozenset[Role] = frozenset()

# By token: what a user of the unix socket may, test_api.py has. `PUBLIC` asks nobody who he is.
PUBLIC = {
    ("GET", "/v1/openapi.json"), ("HEAD", "/v1/openapi.json"), ("GET", "/v1/health"), ("GET", "/"), ("GET", "/ui/"),
    ("GET", "/ui/{name}"), ("POST", "/ui/session"), ("DELETE", "/ui/session"),
}  # fmt: skip
MAY = {
    ("GET", "/v1/jobs"): PEOPLE,
    ("POST", "/v1/jobs"): NOBODY,  # a token does not prove who somebody is
    ("GET", "/v1/jobs/{job_id}"): OPERATOR,  # it is another user's job
    ("GET", "/v1/jobs/{job_id}/history"): OPERATOR,
    ("GET", "/v1/jobs/{job_id}/explain"): OPERATOR,
    ("POST", "/v1/jobs/{job_id}/hold"): OPERATOR,
    ("POST", "/v1/jobs/{job_id}/release"): OPERATOR,
    ("POST", "/v1/jobs/{job_id}/extend"): NOBODY,  # the user of the lease alone
    ("POST", "/v1/jobs/{job_id}/cancel"): OPERATOR,
    ("GET", "/v1/overview"): PEOPLE,
    ("GET", "/v1/overview/stream"): PEOPLE,
    ("GET", "/v1/nodes"): PEOPLE,
    ("GET", "/v1/nodes/{name}"): PEOPLE,
    ("GET", "/v1/nodes/{name}/history"): OPERATOR,
    ("POST", "/v1/nodes/{name}/drain"): OPERATOR,
    ("POST", "/v1/nodes/{name}/undrain"): OPERATOR,
    ("POST", "/v1/nodes/{name}/lend"): OPERATOR,
    ("POST", "/v1/nodes/{name}/swap"): OPERATOR,
    ("GET", "/v1/admissions"): OPERATOR,
    ("POST", "/v1/admissions/{name}/invite"): OPERATOR,
    ("POST", "/v1/admissions/{name}/accept"): OPERATOR,
    ("POST", "/v1/admissions/{name}/revoke"): OPERATOR,
    ("GET", "/v1/donors"): PEOPLE,  # a node has its own, test_donors.py; this one's token is for one that is not there
    ("GET", "/v1/aggregation"): PEOPLE,
    ("GET", "/v1/groups"): PEOPLE,
    ("GET", "/v1/deployments"): PEOPLE,
    ("GET", "/v1/deployments/{name}/leases"): PEOPLE,
    ("PUT", "/v1/deployments/{name}"): PEOPLE,
    ("DELETE", "/v1/deployments/{name}"): PEOPLE,  # their own, which they said before
    ("GET", "/v1/power"): PEOPLE,
    ("POST", "/v1/power/{name}/pardon"): OPERATOR,
    ("GET", "/v1/reservations"): PEOPLE,
    ("POST", "/v1/reservations"): OPERATOR,
    ("POST", "/v1/reservations/{reservation_id}/cancel"): OPERATOR,
    ("GET", "/v1/usage"): PEOPLE,
    ("GET", "/v1/audit"): OPERATOR,
    ("GET", "/v1/whoami"): ALL,
}
SESSION = protocol.PATH  # the one WebSocket: nodes and operators, below
BODIES: dict[str, dict[str, object]] = {
    "/v1/jobs": {"argv": ["true"]},
    "/v1/jobs/{job_id}/extend": {"left_s": 60},
    "/v1/nodes/{name}/drain": {},
    "/v1/nodes/{name}/lend": {"at_most_bytes": None},
    "/v1/nodes/{name}/swap": {"size_bytes": None},
    "/v1/admissions/{name}/invite": {},
    "/v1/reservations": {"nodes": ["n0"], "from_s": 9e9, "to_s": 9.1e9},
    "/v1/deployments/{name}": {"front": "f", "ready": True},
}
NAMES = {"job_id": "1", "name": "n0", "reservation_id": "m1"}
# He was let in: no scheduler process answers `explain` in these tests, no more may follow a stream, and no power is
# switched.
NOT_HERE = (409, 503)


async def prepared(api: Api) -> None:
    """What the paths name is there."""
    await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})
    await api.as_uid(0).post("/v1/reservations", json=BODIES["/v1/reservations"])
    api.overviews.enter = lambda caller: "full"  # type: ignore[method-assign] # a stream has no end


async def status_of(client: httpx.AsyncClient, method: str, path: str, **more: str) -> int:
    body = BODIES.get(path) if method in {"POST", "PUT"} else None
    if method == "DELETE" and path in BODIES:
        await client.put(path.format(**NAMES), json=BODIES[path], headers=more)
    asked = {"front": "f"} if method == "DELETE" else None
    return (await client.request(method, path.format(**NAMES), json=body, headers=more, params=asked)).status_code


def test_every_route_has_its_line_here(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        found = {
            (method, route.path)
            for route in iter_route_contexts(api.app.routes)
            for method in getattr(route, "methods", None) or ("websocket",)
        }

        assert found == {*PUBLIC, *MAY, ("websocket", SESSION)}

    api_test(test, tmp_path)


@pytest.mark.parametrize(("method", "path"), MAY, ids=" ".join)
def test_a_route_refuses_every_role_that_is_not_its_own_and_who_has_no_token(
    method: str, path: str, tmp_path: Path
) -> None:
    async def test(api: Api) -> None:
        await prepared(api)

        for role in Role:
            status = await status_of(api.as_role(role), method, path)
            assert (status < 400 or status in NOT_HERE) == (role in MAY[method, path]), f"{role}: {status}"
            assert status in NOT_HERE or status < 400 or status in (403, 404)
        nobody = api.as_role(None)
        assert await status_of(nobody, method, path) == 401
        for wrong in ("Bearer wrong", "Bearer ", "Basic Og==", f"Token {api.tokens[Role.OPERATOR]}"):
            assert await status_of(nobody, method, path, Authorization=wrong) == 401, wrong

    api_test(test, tmp_path)


@pytest.mark.parametrize(("method", "path"), [key for key in MAY if key[0] != "GET"], ids=" ".join)
def test_the_pages_cookie_changes_nothing(method: str, path: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await prepared(api)
        cookie = api.callers.cookie_for(api.tokens[Role.OPERATOR], time.time())

        assert await status_of(api.as_role(None), method, path, Cookie=f"{COOKIE}={cookie}") == 403

    api_test(test, tmp_path)


@pytest.mark.parametrize(("method", "path"), sorted(PUBLIC), ids=" ".join)
def test_what_anybody_may_have_says_nothing_of_jobs_or_nodes(method: str, path: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await prepared(api)
        answer = await api.as_role(None).request(method, path.format(name="index.html"))

        assert OTHER.pw_name not in answer.text
        assert answer.status_code < 400 or path == "/ui/session"

    api_test(test, tmp_path)


# ------------------------------------------------------------------------------------- the agents' session


def session_of(
    api: Api, token: str | None, host: str = "192.0.2.7", *, header: str | None = None, scheme: str = "ws"
) -> tuple["asyncio.Future[None]", "asyncio.Queue[Message]"]:
    """A connection that says HELLO for n0, and what it hears."""
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    headers += [] if header is None else [(HEADER.lower().encode(), header.encode())]
    scope = {
        "type": "websocket", "path": SESSION, "raw_path": SESSION.encode(), "headers": headers, "query_string": b"",
        "scheme": scheme, "client": (host, 4711), "server": ("manager", 80), "subprotocols": [], "state": {},
        "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    hello = protocol.AgentSide(seen_generation=0).send(FakeNode("n0").hello())
    told: list[Message] = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": hello}]
    heard: asyncio.Queue[Message] = asyncio.Queue()

    async def receive() -> Message:
        if told:
            return told.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    return asyncio.ensure_future(api.app(scope, receive, heard.put)), heard


async def first_answer(api: Api, token: str | None, host: str = "192.0.2.7", **more: str) -> Message:
    """What the manager does with a connection that says HELLO for n0: accepts and closes it, or goes on."""
    session, heard = session_of(api, token, host, **more)
    first = await heard.get()
    if first["type"] == "websocket.accept":
        joined = asyncio.ensure_future(until_joined(api))
        closed = asyncio.ensure_future(heard.get())
        await asyncio.wait((joined, closed), return_when=asyncio.FIRST_COMPLETED)
        first = closed.result() if closed.done() else {"type": "joined"}
        joined.cancel()
        closed.cancel()
    session.cancel()
    await asyncio.gather(session, return_exceptions=True)
    return first


async def until_joined(api: Api) -> None:
    while api.sessions.connected == 0:
        await asyncio.sleep(0)


@pytest.mark.parametrize("who", [None, "wrong", *Role])
def test_only_nodes_and_operators_have_an_agents_session(who: Role | str | None, tmp_path: Path) -> None:
    async def test() -> None:
        async with an_api(tmp_path) as api:
            token = api.tokens[who] if isinstance(who, Role) else who
            node_token = api.node_token("n0")

            answer = await first_answer(api, node_token if who is Role.NODE else token)

            allowed = who in (Role.NODE, Role.OPERATOR)
            assert (answer["type"] == "joined") == allowed, answer
            if who is Role.USER:
                assert answer["code"] == protocol.CloseCode.FORBIDDEN
                assert "may not speak for node n0; `farside node invite n0` makes a token that may" in answer["reason"]

    asyncio.run(test())


@pytest.mark.parametrize("uid", [0, OTHER.pw_uid])
def test_on_the_unix_socket_root_is_a_node_without_a_token_and_a_user_is_none(uid: int, tmp_path: Path) -> None:
    """[H2] An agent beside its manager sends no token that somebody could take."""

    async def test() -> None:
        async with an_api(tmp_path) as api:
            answer = await first_answer(api, None, f"uid:{uid}")

            assert (answer["type"] == "joined") == (uid == 0), answer

    asyncio.run(test())


@pytest.mark.parametrize(
    ("header", "status", "line"),
    [
        ("1 nonsense", 400, "no proof"),
        ("9 0 0", 400, "version 9 of the proof is not spoken here"),
        (offer(key_of("unknown"), b"n" * NONCE_BYTES).text, 401, "this token is not known here"),
    ],
)
def test_an_offer_that_proves_nothing_is_refused_before_a_session(
    header: str, status: int, line: str, tmp_path: Path
) -> None:
    async def test() -> None:
        async with an_api(tmp_path) as api:
            session, heard = session_of(api, None, header=header)
            answer, body = await heard.get(), await heard.get()
            await asyncio.wait((session,))

            assert (answer["type"], answer["status"]) == ("websocket.http.response.start", status)
            assert line in body["body"].decode()
            assert (HEADER.lower().encode(), b"1") in answer["headers"]

    asyncio.run(test())


def test_a_hello_without_the_code_of_the_key_that_was_offered_is_hung_up_on(tmp_path: Path) -> None:
    """[H2] Whoever saw an offer on the wire may send it again, and gets no further."""

    async def test() -> None:
        async with an_api(tmp_path) as api:
            header = offer(key_of(api.node_token("n0")), b"n" * NONCE_BYTES).text

            answer = await first_answer(api, None, header=header)

            assert (answer["type"], answer["code"]) == ("websocket.close", protocol.CloseCode.FORBIDDEN)
            assert "no code of the peer that proved itself" in answer["reason"]

    asyncio.run(test())


@pytest.mark.parametrize(
    ("scheme", "host", "joins"), [("ws", "192.0.2.7", False), ("wss", "192.0.2.7", True), ("ws", "uid:0", True)]
)
def test_agents_that_send_their_token_in_the_clear_may_be_refused(
    scheme: str, host: str, joins: bool, tmp_path: Path
) -> None:
    """[H2] Agents of the version before give their token to any program on the manager's port."""

    async def test() -> None:
        async with an_api(tmp_path, takes_unproved=False) as api:
            answer = await first_answer(api, api.node_token("n0"), host, scheme=scheme)

            assert (answer["type"] == "joined") == joins, answer
            assert joins or answer["status"] == 403

    asyncio.run(test())


def test_a_nodes_token_does_not_speak_for_another_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with an_api(tmp_path) as api:
            answer = await first_answer(api, api.node_token("n1"))

            assert (answer["type"], answer["code"]) == ("websocket.close", protocol.CloseCode.FORBIDDEN)

    asyncio.run(test())


def test_a_token_that_is_taken_away_ends_the_session_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[M9] A node whose token was revoked went on to get jobs for as long as its connection held."""
    monkeypatch.setattr(sessions_module, "WATCH_PERIOD_S", 0.01)

    async def test() -> None:
        async with an_api(tmp_path) as api:
            session, heard = session_of(api, api.node_token("n0"))
            watch = asyncio.ensure_future(api.sessions.watch_tokens())
            await until_joined(api)
            assert (await heard.get())["type"] == "websocket.accept"

            api.revoke_all()

            async with asyncio.timeout(60):
                while (answer := await heard.get())["type"] != "websocket.close":
                    pass
            assert (answer["code"], answer["reason"]) == (4403, "this token is not known here")
            watch.cancel()
            session.cancel()
            await asyncio.gather(watch, session, return_exceptions=True)

    asyncio.run(test())


def test_a_token_for_any_node_lets_no_node_in(tmp_path: Path) -> None:
    """[H3] Whoever had it was any node: one that nobody knows joined, and was handed other users' jobs."""

    async def test() -> None:
        async with an_api(tmp_path) as api:
            answer = await first_answer(api, api.token_for_any_node())
            donors = await api.as_token(api.token_for_any_node()).get("/v1/donors?node=n0")

            assert (answer["type"], answer["code"]) == ("websocket.close", protocol.CloseCode.FORBIDDEN)
            assert answer["reason"] == "a token for any node counts no more: `farside token n0` makes this node's own"
            assert (donors.status_code, api.sessions.connected) == (403, 0)

    asyncio.run(test())


@pytest.mark.parametrize("name", ["", "  "])
def test_no_token_is_made_for_any_node(name: str, tmp_path: Path) -> None:
    """[H3]"""
    with pytest.raises(ConfigError, match="a token needs a name"):
        add_token(tmp_path / "tokens.toml", name, Role.NODE)
    assert not (tmp_path / "tokens.toml").exists()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_tokens_file_that_others_may_read_or_change_is_refused(mode: int, tmp_path: Path) -> None:
    """[H2] A hash in it is the key by which the manager proves itself."""
    file = tmp_path / "tokens.toml"
    add_token(file, "n0", Role.NODE)
    file.chmod(mode)

    with pytest.raises(ConfigError, match=rf"{file}: others may read or change it; chmod 600 {file}"):
        read_tokens(file)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda file: file.chmod(0o644), "others may read or change it; chmod 600"),
        pytest.param(
            lambda file: os.chown(file, OTHER.pw_uid, -1), f"it belongs to uid {OTHER.pw_uid}, who can make operators",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user"),
        ),
    ],
    ids=["read by others", "another user's"],
)  # fmt: skip
def test_a_tokens_file_that_is_opened_to_others_while_the_manager_runs_lets_nobody_in(
    spoil: Callable[[Path], None], line: str, tmp_path: Path
) -> None:
    """[H2] Only at the start, and after a change of what was in it, was that looked at."""
    file = tmp_path / "tokens.toml"

    async def test(api: Api) -> None:
        operator = api.as_role(Role.OPERATOR)
        before = await operator.get("/v1/whoami")
        spoil(file)
        agent = await first_answer(api, api.tokens[Role.NODE])
        refused, by_kernel = await operator.get("/v1/whoami"), await api.as_uid(0).get("/v1/whoami")
        os.chown(file, os.geteuid(), -1)
        file.chmod(0o600)
        after = await operator.get("/v1/whoami")

        assert [one.status_code for one in (before, by_kernel, after)] == [200, 200, 200]
        assert (agent["type"], agent["status"]) == ("websocket.http.response.start", 503)
        assert refused.status_code == 422
        assert line in refused.json()["detail"]

    api_test(test, tmp_path)
