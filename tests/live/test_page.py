"""The page's files, signing in, and what a browser may and may not be made to do."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from farside.scheduler.manager.api.page import FOLDER
from farside.scheduler.manager.auth.caller import Caller
from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.auth.web_session import LASTS_S, WebSessions, mark_of, session_key
from tests.live.test_api import OTHER, THIRD, Api, api_test

SESSIONS = WebSessions(b"k" * 32)


async def signed_in(api: Api, role: Role = Role.USER) -> httpx.AsyncClient:
    client = api.as_role(None)
    answer = await client.post("/ui/session", json={"token": api.tokens[role]})
    assert answer.status_code == 200, answer.text
    return client


# ---------------------------------------------------------------------------------------------- cookies


def test_a_cookie_is_for_one_token_and_for_twelve_hours() -> None:
    cookie = SESSIONS.open("hash", 1000.0)

    assert SESSIONS.mark_in(cookie, 1000.0) == mark_of("hash")
    assert SESSIONS.mark_in(cookie, 1000.0 + LASTS_S - 1) == mark_of("hash")
    assert SESSIONS.mark_in(cookie, 1000.0 + LASTS_S) is None
    assert "hash" not in cookie


def test_a_cookie_that_was_touched_is_none() -> None:
    cookie = SESSIONS.open("hash", 1000.0)

    for at in range(len(cookie)):
        touched = cookie[:at] + ("0" if cookie[at] != "0" else "1") + cookie[at + 1 :]
        assert SESSIONS.mark_in(touched, 1000.0) is None
    for wrong in ("", ".", "..", "a.b.c", "a.1.é", "a.٣.b", f"{cookie}0", f"a.{'9' * 400}.b"):
        assert SESSIONS.mark_in(wrong, 1000.0) is None


def test_a_cookie_of_another_manager_is_none() -> None:
    assert WebSessions(b"x" * 32).mark_in(SESSIONS.open("hash", 0.0), 0.0) is None


def test_the_key_outlives_a_restart_and_is_its_owner_s_alone(tmp_path: Path) -> None:
    key = session_key(tmp_path)

    assert session_key(tmp_path) == key
    assert (tmp_path / "web.key").stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------------------------------------- signing in


def test_who_signed_in_sees_what_the_token_may_see(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        mine = (await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]
        user, operator = await signed_in(api), await signed_in(api, Role.OPERATOR)

        assert (await user.get("/v1/overview")).json()["waiting"] == []
        assert (await operator.get("/v1/overview")).json()["waiting"] == [mine]
        assert (await user.get(f"/v1/jobs/{mine}")).status_code == 404
        assert (await user.get("/v1/whoami")).json() == {"name": "carl", "role": "user", "proved": False}

    api_test(test, tmp_path)


def test_scripts_and_other_sites_have_no_use_of_the_cookie_and_it_holds_no_token(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_role(None)
        answer = await client.post("/ui/session", json={"token": api.tokens[Role.USER]})
        cookie = answer.headers["set-cookie"]

        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert api.tokens[Role.USER] not in cookie + answer.text

    api_test(test, tmp_path)


def test_the_cookie_changes_nothing(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})
        operator = await signed_in(api, Role.OPERATOR)

        answer = await operator.post("/v1/jobs/1/cancel")

        assert (answer.status_code, "read-only" in answer.json()["detail"]) == (403, True)
        assert (await operator.get("/v1/jobs/1")).json()["state"] == "waiting"

    api_test(test, tmp_path)


def test_who_signed_out_or_whose_token_is_gone_is_nobody(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        leaver, robbed = await signed_in(api), await signed_in(api)
        await leaver.delete("/ui/session")
        (tmp_path / "tokens.toml").write_text("")

        assert (await leaver.get("/v1/jobs")).status_code == 401
        assert (await robbed.get("/v1/jobs")).status_code == 401

    api_test(test, tmp_path)


@pytest.mark.parametrize(
    ("role", "status", "says"), [(None, 401, "not known here"), (Role.NODE, 403, "agent's session only")]
)
def test_a_wrong_token_and_a_node_s_do_not_sign_in(role: Role | None, status: int, says: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        token = "wrong" if role is None else api.tokens[role]
        answer = await api.as_role(None).post("/ui/session", json={"token": token})

        assert (answer.status_code, says in answer.json()["detail"]) == (status, True)
        assert "set-cookie" not in answer.headers

    api_test(test, tmp_path)


# ---------------------------------------------------------------------------------------------- other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this host
        {"Origin": "null"},
        {"Origin": "http://evil.example", "Host": "evil.example"},  # its name leads here by now
        {"Sec-Fetch-Site": "same-origin", "Host": "evil.example:7680"},
    ],
    ids=str,
)
def test_another_site_s_page_can_do_nothing_with_a_user_s_forwarded_socket(
    headers: dict[str, str], tmp_path: Path
) -> None:
    async def test(api: Api) -> None:
        client = api.as_uid(OTHER.pw_uid)

        assert (await client.post("/v1/jobs", json={"argv": ["true"]}, headers=headers)).status_code == 403
        assert (await client.get("/v1/jobs", headers=headers)).status_code == 403

    api_test(test, tmp_path)


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "manager"])
def test_the_own_page_over_a_forwarded_socket_is_its_user(host: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        answer = await api.as_uid(THIRD.pw_uid).get("/v1/whoami", headers=headers)

        assert answer.json()["name"] == THIRD.pw_name

    api_test(test, tmp_path)


def test_another_site_s_page_can_sign_nobody_in_or_out(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        headers = {"Origin": "https://evil.example"}
        client = await signed_in(api)
        into = await client.post("/ui/session", json={"token": api.tokens[Role.USER]}, headers=headers)
        out = await client.delete("/ui/session", headers=headers)

        assert (into.status_code, out.status_code) == (403, 403)
        assert (await client.get("/v1/jobs")).status_code == 200

    api_test(test, tmp_path)


# ---------------------------------------------------------------------------------------------- files


def test_every_file_comes_with_a_policy_that_lets_no_other_script_in(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_role(None)
        for path in sorted(FOLDER.iterdir()):
            answer = await client.get(f"/ui/{path.name}")
            policy = answer.headers["content-security-policy"]

            assert answer.content == path.read_bytes()
            assert "default-src 'none'; script-src 'self'" in policy
            assert "unsafe" not in policy
            again = await client.get(f"/ui/{path.name}", headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")

    api_test(test, tmp_path)


def test_the_page_is_where_people_look_for_it_and_nothing_else_is_there(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_role(None)

        assert (await client.get("/")).headers["location"] == "/ui/"
        assert (await client.get("/ui/")).text == (FOLDER / "index.html").read_text()
        for name in ("..%2f..%2fcaller.py", "nothing.js", "%2e%2e"):
            assert (await client.get(f"/ui/{name}")).status_code == 404

    api_test(test, tmp_path)


def test_no_file_loads_anything_from_elsewhere_or_makes_markup_of_text() -> None:
    text = "".join(path.read_text() for path in FOLDER.iterdir())

    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in text


# ---------------------------------------------------------------------------------------------- the stream


def test_the_stream_tells_all_and_then_what_changes_until_its_token_is_gone(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        overviews, log = api.overviews, api.log
        caller = api.caller(Role.OPERATOR)
        is_valid = [True, True, False]
        events = overviews.follow(caller, lambda: is_valid.pop(0))

        kind, told = parts(await anext(events))
        await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})
        async with asyncio.timeout(60):
            after, change = parts(await anext(events))
            last, _ = parts(await anext(events))

        assert (kind, told["waiting"], [node["name"] for node in told["nodes"]]) == ("all", [], ["n0"])
        assert (after, change["waiting"], change["nodes"]) == ("change", ["1"], [])
        assert change["seq"] == log.state.seq
        assert last == "over"
        await events.aclose()  # type: ignore[attr-defined]

    api_test(test, tmp_path)


def parts(event: bytes) -> tuple[str, dict[str, Any]]:
    name, data = event.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_one_caller_follows_four_times_and_users_leave_operators_some_room(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        users = [Caller(name=f"u{at}", role=Role.USER) for at in range(20)]

        taken = [sum(not api.overviews.enter(user) for _ in range(64)) for user in users]
        refused = await api.as_uid(OTHER.pw_uid).get("/v1/overview/stream")

        assert taken == [4] * 14 + [0] * 6
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert [api.overviews.enter(api.caller(Role.OPERATOR)) for _ in range(5)] == [
            *[""] * 4, "4 of yours follow already; close one",
        ]  # fmt: skip

    api_test(test, tmp_path)


def test_a_stream_gives_its_place_back_though_its_reader_went_before_it_began(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        scope = {
            "type": "http", "method": "GET", "path": "/v1/overview/stream", "raw_path": b"", "query_string": b"",
            "headers": [], "client": (f"uid:{OTHER.pw_uid}", 0), "server": ("m", 80), "http_version": "1.1",
            "root_path": "", "scheme": "http",
        }  # fmt: skip
        during = []

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None:
            during.append(api.overviews.streams)

        async with asyncio.timeout(60):
            await api.app(scope, receive, send)

        assert (during[:1], api.overviews.streams) in (([1], 0), ([], 0))

    api_test(test, tmp_path)
