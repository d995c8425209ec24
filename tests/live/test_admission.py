"""Which nodes may join: by an invitation, once; by a certificate, once an operator has accepted the name [H3]."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from farside.agent import messages as m
from farside.agent import protocol
from farside.agent.mutual_proof import HEADER, NONCE_BYTES, Frames, PlainFrames, check_answer, key_of, offer
from farside.errors import ConfigError
from farside.proof import key_id
from farside.scheduler.manager.auth import caller as caller_module
from farside.scheduler.manager.auth.caller import CERTIFICATE, UNTOLD
from farside.scheduler.manager.auth.token_file import Role, add_token, read_tokens, revoke_tokens
from farside.scheduler.manager.model.event import Event, NodeAccepted, NodeInvited, NodeKeyed, NodeRevoked
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.nodes import sessions as sessions_module
from tests.live.fake_agent import FakeNode
from tests.live.test_api import Api, an_api

LIMIT_S = 60.0


@dataclass
class Attempt:
    """One connection of an agent to the API, without a network.

    Attributes:
        answer: What the manager did: ``welcome``, its status before a session, or its close.
        lasting_token: The node's token from now on, if it came by an invitation.
    """

    task: "asyncio.Future[None]"
    heard: "asyncio.Queue[Message]"
    told: "asyncio.Queue[Message]"
    answer: Mapping[str, Any] = field(default_factory=dict)
    lasting_token: str = ""

    async def closed(self) -> Message:
        async with asyncio.timeout(LIMIT_S):
            while (message := await self.heard.get())["type"] != "websocket.close":
                pass
        return message

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def attempt(
    api: Api, token: str = "", *, node: FakeNode | None = None, certificate: str = "", says_hello: bool = True,
    untold: Callable[[], None] = lambda: None,
) -> Attempt:  # fmt: skip
    """An agent connects by a token or an invitation, or by a certificate for this node, and says HELLO."""
    offered = offer(key_of(token), b"n" * NONCE_BYTES)
    state: dict[str, object] = {UNTOLD: untold}
    if certificate:
        state[CERTIFICATE] = {"subjectAltName": (("URI", f"farside://node/{certificate}"),)}
    scope = {
        "type": "websocket", "path": protocol.PATH, "raw_path": protocol.PATH.encode(), "query_string": b"",
        "headers": [(HEADER.lower().encode(), offered.text.encode())] if token else [], "state": state,
        "scheme": "ws" if token else "wss", "client": ("192.0.2.7", 4711), "server": ("manager", 80),
        "subprotocols": [], "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    told: asyncio.Queue[Message] = asyncio.Queue()
    heard: asyncio.Queue[Message] = asyncio.Queue()
    told.put_nowait({"type": "websocket.connect"})
    made = Attempt(asyncio.ensure_future(api.app(scope, told.get, heard.put)), heard, told)
    async with asyncio.timeout(LIMIT_S):
        first = await heard.get()
        if first["type"] != "websocket.accept":
            made.answer = {"status": first["status"], "detail": (await heard.get())["body"].decode()}
            return made
        frames: Frames = PlainFrames()
        if token:
            shown = dict(first["headers"])[HEADER.lower().encode()].decode()
            coded = check_answer(key_of(token), offered, shown)
            frames, made.lasting_token = coded, coded.lasting_token
        if not says_hello:
            return made
        side = protocol.AgentSide()
        hello = side.send((node or FakeNode("n9")).hello())
        told.put_nowait({"type": "websocket.receive", "text": frames.seal(hello)})
        answer = await heard.get()
        if answer["type"] == "websocket.close":
            made.answer = {"code": answer["code"], "detail": answer["reason"]}
        else:
            welcome = side.receive(frames.open(answer["text"]))
            assert isinstance(welcome, m.Welcome)
            made.answer = {"welcome": welcome.generation}
    return made


def operator(api: Api) -> httpx.AsyncClient:
    return api.as_token(api.tokens[Role.OPERATOR])


async def invited(api: Api, node: str = "n9", **body: object) -> str:
    answer = await operator(api).post(f"/v1/admissions/{node}/invite", json=body)
    assert answer.status_code == 200, answer.text
    token: str = answer.json()["invitation"]
    return token


async def told(api: Api, node: str, what: str) -> Mapping[str, Any]:
    answer = await operator(api).post(f"/v1/admissions/{node}/{what}")
    row: Mapping[str, Any] = answer.json()
    assert answer.status_code == 200, row
    return row


async def row_of(api: Api, node: str) -> Mapping[str, Any]:
    rows = (await operator(api).get("/v1/admissions")).json()["admissions"]
    found: Mapping[str, Any] = next(row for row in rows if row["name"] == node)
    return found


def run(folder: Path, test: Any, **more: Any) -> None:
    async def do() -> None:
        async with an_api(folder, **more) as api:
            api.lead()
            await test(api)

    asyncio.run(do())


def test_an_invitation_counts_once_and_leaves_a_token_that_nobody_sent(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        invitation = await invited(api)

        first = await attempt(api, invitation)
        await first.end()
        again = await attempt(api, invitation)
        later = await attempt(api, first.lasting_token)
        await later.end()

        assert "welcome" in first.answer
        assert again.answer["status"] == 401
        assert "an invitation counts once, `farside node invite` makes one" in again.answer["detail"]
        assert "welcome" in later.answer
        assert (await row_of(api, "n9"))["state"] == "joined"

    run(tmp_path, test)


def test_of_two_agents_that_use_an_invitation_at_the_same_moment_one_joins(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        invitation = await invited(api)

        waiting = await attempt(api, invitation, says_hello=False)
        first = await attempt(api, invitation)
        waiting.told.put_nowait({"type": "websocket.receive", "text": "anything"})
        refused = await waiting.closed()

        assert "welcome" in first.answer
        assert refused["code"] == protocol.CloseCode.FORBIDDEN
        await first.end()

    run(tmp_path, test)


@pytest.mark.parametrize(
    "garble",
    [lambda told: told[:-1], lambda told: told.swapcase(), lambda told: told + told, lambda _: "invite-"],
    ids=["cut short", "other letters", "twice", "its beginning alone"],
)
def test_a_garbled_invitation_lets_nobody_in_and_says_how_to_get_another(
    garble: Callable[[str], str], tmp_path: Path
) -> None:
    """[H3]"""

    async def test(api: Api) -> None:
        invitation = await invited(api)

        refused, joined = await attempt(api, garble(invitation)), await attempt(api, invitation)

        assert refused.answer["status"] == 401
        assert "an invitation counts once, `farside node invite` makes one" in refused.answer["detail"]
        assert "welcome" in joined.answer  # it was not used up
        await joined.end()

    run(tmp_path, test)


def test_an_invitation_ends(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        late = await attempt(api, await invited(api, valid_s=1e-6))

        assert late.answer["status"] == 401
        assert "the invitation ended" in late.answer["detail"]
        assert "`farside node invite n9` makes another" in late.answer["detail"]
        assert (await row_of(api, "n9"))["state"] == "expired"

    run(tmp_path, test)


def test_a_new_invitation_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        before, after = await invited(api), await invited(api)

        refused, joined = await attempt(api, before), await attempt(api, after)

        assert refused.answer["status"] == 401
        assert "welcome" in joined.answer
        await joined.end()

    run(tmp_path, test)


def test_an_invitation_is_for_the_node_that_it_names(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        invitation = await invited(api)

        other = await attempt(api, invitation, node=FakeNode("n7"))
        own = await attempt(api, invitation)

        way_out = 'set `node = "n9"` in its agent.toml, or `farside node invite n7`'
        detail = f"node n9 may not speak for node n7; {way_out}"
        assert other.answer == {"code": protocol.CloseCode.FORBIDDEN, "detail": detail}
        assert "welcome" in own.answer  # the other has not used it up
        await own.end()

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"valid_s": 0}, "valid_s"), ({"valid_s": 8 * 86_400}, "valid_s"), ({"gpus": -1}, "gpus"),
        ({"memory_bytes": "much"}, "memory_bytes"), ({"forever": True}, "forever"),
    ],
)  # fmt: skip
def test_an_invitation_that_makes_no_sense_is_refused(body: Mapping[str, object], line: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await operator(api).post("/v1/admissions/n9/invite", json=body)

        assert answer.status_code == 422
        assert line in answer.text

    run(tmp_path, test)


def test_a_revoked_node_loses_its_session_and_is_refused_by_any_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[M9]"""
    monkeypatch.setattr(sessions_module, "WATCH_PERIOD_S", 0.01)

    async def test(api: Api) -> None:
        watch = asyncio.ensure_future(api.sessions.watch_tokens())
        by_invitation = await attempt(api, await invited(api))
        by_token = await attempt(api, api.node_token("n8"), node=FakeNode("n8"))
        assert "welcome" in by_invitation.answer
        assert "welcome" in by_token.answer

        for name in ("n8", "n9"):
            assert (await told(api, name, "revoke"))["state"] == "revoked"

        assert "was revoked" in (await by_token.closed())["reason"]
        assert (await by_invitation.closed())["code"] == protocol.CloseCode.FORBIDDEN
        again = await attempt(api, api.node_token("n8"), node=FakeNode("n8"))
        assert "n8 was revoked: `farside node accept` or `invite` lets it in again" in again.answer["detail"]
        lost = await attempt(api, by_invitation.lasting_token)
        assert lost.answer["status"] == 401
        await told(api, "n8", "accept")
        back = await attempt(api, api.node_token("n8"), node=FakeNode("n8"))
        assert "welcome" in back.answer
        # What it got for its invitation is gone for good.
        await told(api, "n9", "accept")
        assert (await attempt(api, by_invitation.lasting_token)).answer["status"] == 401
        for one in (by_invitation, by_token, back):
            await one.end()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    run(tmp_path, test)


def by(node: str, event: type[NodeRevoked | NodeAccepted]) -> NodeRevoked | NodeAccepted:
    return event(node=node, by="carl")


@pytest.mark.parametrize("then", [(), (NodeAccepted,)], ids=["and stays so", "and is accepted at once"])
def test_of_nodes_that_are_revoked_between_two_looks_each_loses_its_session(
    then: Sequence[type[NodeAccepted]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[M9] A second change gave the admissions the address of the first ones, so nobody looked: the session stayed."""
    monkeypatch.setattr(sessions_module, "WATCH_PERIOD_S", 0.01)

    async def test(api: Api) -> None:
        watch = asyncio.ensure_future(api.sessions.watch_tokens())
        for turn in range(5):
            names = (f"a{turn}", f"b{turn}")
            joined = [await attempt(api, api.node_token(name), node=FakeNode(name)) for name in names]
            assert all("welcome" in one.answer for one in joined)

            # In one write, so that no look falls between them.
            kinds: tuple[type[NodeRevoked | NodeAccepted], ...] = (NodeRevoked, *then)
            events = [by(name, kind) for kind in kinds for name in names]
            await api.log.write(events, "test")

            assert ["was revoked" in (await one.closed())["reason"] for one in joined] == [True, True]
            for one in joined:
                await one.end()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    run(tmp_path, test)


def test_who_is_invited_in_the_place_of_a_revoked_node_is_not_refused_for_its_session(tmp_path: Path) -> None:
    """[M9] By a certificate the revoked one may speak again once the name is invited: nobody looks in this test."""

    async def test(api: Api) -> None:
        revoked = await attempt(api, certificate="n0", node=FakeNode("n0", boot_id="boot-of-another"))
        assert "welcome" in revoked.answer
        await told(api, "n0", "revoke")

        true = await attempt(api, await invited(api, "n0"), node=FakeNode("n0"))

        assert "welcome" in true.answer
        assert (await revoked.closed())["reason"] == "another connection of this node"
        for one in (revoked, true):
            await one.end()

    run(tmp_path, test)


def test_a_node_that_is_revoked_while_its_invitation_is_used_gets_no_session_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[M9] There was no session yet that could be ended, and the token counted once the name was accepted again."""

    async def test(api: Api) -> None:
        write = api.log.write

        async def revoked_first(events: Sequence[Event], cause: str) -> range:
            if isinstance(events[0], NodeKeyed):
                await write([by("n9", NodeRevoked)], "test")
            return await write(events, cause)

        invitation = await invited(api)
        monkeypatch.setattr(api.log, "write", revoked_first)
        late = await attempt(api, invitation)

        assert late.answer["code"] == protocol.CloseCode.FORBIDDEN
        assert api.sessions.connected == 0
        await told(api, "n9", "accept")
        assert (await attempt(api, late.lasting_token)).answer["status"] == 401

    run(tmp_path, test)


@pytest.mark.parametrize("proof", ["certificate", "operator's token"])
def test_a_name_that_nobody_knows_waits_for_an_operator_where_its_proof_does_not_name_it(
    proof: str, tmp_path: Path
) -> None:
    """[H3] By an operator's token whatever name was made up joined at once, and got jobs."""

    async def test(api: Api) -> None:
        async def joins(node: str) -> Attempt:
            if proof == "certificate":
                return await attempt(api, certificate=node, node=FakeNode(node))
            return await attempt(api, api.tokens[Role.OPERATOR], node=FakeNode(node))

        stranger, known = await joins("n9"), await joins("n0")
        row = await row_of(api, "n9")
        names = [node["name"] for node in (await operator(api).get("/v1/nodes")).json()["nodes"]]

        await told(api, "n9", "accept")
        accepted = await joins("n9")

        assert stranger.answer["detail"] == "n9 is not known here: `farside node accept n9` lets it in"
        assert (row["state"], row["gpus"], row["by"]) == ("waits", 4, "192.0.2.7")
        assert names == ["n0"]
        assert "welcome" in known.answer
        assert "welcome" in accepted.answer
        for one in (known, accepted):
            await one.end()

    run(tmp_path, test)


def test_names_of_keys_that_nobody_has_do_not_have_all_nodes_gone_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 2,000 nodes each stranger's request took 1.7 ms of the loop that all requests share."""
    named: list[bytes] = []

    def counted(key: bytes) -> bytes:
        named.append(key)
        return key_id(key)

    monkeypatch.setattr(caller_module, "key_id", counted)

    async def test(api: Api) -> None:
        events = [
            NodeInvited(node=f"n{at}", key=f"{at:064x}", expires_s=9e9, gpus=None, memory_bytes=None, by="carl")
            for at in range(9, 60)
        ]
        await api.log.write(events, "test")
        first = await attempt(api, "invite-made-up")
        named.clear()

        again = await attempt(api, "invite-made-up")

        assert (first.answer["status"], again.answer["status"]) == (401, 401)
        assert not named
        joined = await attempt(api, await invited(api, "n7"), node=FakeNode("n7"))
        assert "welcome" in joined.answer  # a change is seen all the same
        await joined.end()

    run(tmp_path, test)


def test_a_node_that_says_that_it_has_more_than_before_is_told_until_it_is_accepted(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        token = api.node_token("n9")
        await (await attempt(api, token, node=FakeNode("n9", gpus=4))).end()
        await (await attempt(api, token, node=FakeNode("n9", gpus=16))).end()
        grown = (await row_of(api, "n9"))["excess"]

        accepted = await told(api, "n9", "accept")
        await (await attempt(api, token, node=FakeNode("n9", gpus=16))).end()

        assert grown == "16 GPUs instead of 4"
        assert (accepted["excess"], (await row_of(api, "n9"))["excess"]) == ("", "")

    run(tmp_path, test)


def test_what_an_invitation_says_counts_from_the_first_join_on(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        invitation = await invited(api, gpus=2, memory_bytes=1 << 30)
        joined = await attempt(api, invitation, node=FakeNode("n9", gpus=4))
        await joined.end()

        assert (await row_of(api, "n9"))["excess"] == "4 GPUs instead of 2, 64 GiB of memory instead of 1 GiB"

    run(tmp_path, test)


def test_no_key_is_shown_to_anybody(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        invitation = await invited(api)
        joined = await attempt(api, invitation)
        keys = [key_of(invitation).hex(), key_of(joined.lasting_token).hex()]
        await joined.end()
        shown = [
            (await operator(api).get(path)).text for path in ("/v1/nodes/n9/history", "/v1/audit", "/v1/admissions")
        ]

        assert all("n9" in text for text in shown)
        assert not [text for text in shown if any(key in text for key in keys)]

    run(tmp_path, test)


def test_admissions_outlive_a_snapshot(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await (await attempt(api, await invited(api))).end()
        await told(api, "n8", "revoke")
        state = api.log.state

        assert decode_state(encode_state(state)).admissions == state.admissions
        assert set(state.admissions) == {"n8", "n9"}

    run(tmp_path, test)


def test_a_connection_is_one_that_anybody_may_have_opened_until_its_hello_came(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        counted_out: list[str] = []
        token = api.node_token("n9")

        silent = await attempt(api, token, says_hello=False, untold=lambda: counted_out.append("silent"))
        joined = await attempt(api, token, untold=lambda: counted_out.append("joined"))

        assert counted_out == ["joined"]
        for one in (silent, joined):
            await one.end()

    run(tmp_path, test)


@pytest.mark.parametrize("proof", ["token", "certificate"])
def test_a_revoked_node_is_not_told_where_donors_are(proof: str, tmp_path: Path) -> None:
    """[M9] Its session ended, and its token went on to tell it the donors' addresses."""

    async def test(api: Api) -> None:
        async def by_certificate(scope: Any, receive: Any, send: Any) -> None:
            certificate = {"subjectAltName": (("URI", "farside://node/n0"),)}
            await api.app({**scope, "state": {CERTIFICATE: certificate}}, receive, send)

        transport = httpx.ASGITransport(app=by_certificate, client=("192.0.2.7", 4711))
        node = httpx.AsyncClient(transport=transport, base_url="https://manager")
        if proof == "token":
            node = api.as_token(api.node_token("n0"))
        before = await node.get("/v1/donors")
        await told(api, "n0", "revoke")
        revoked = await node.get("/v1/donors")
        await told(api, "n0", "accept")
        after = await node.get("/v1/donors")

        assert (before.status_code, revoked.status_code, after.status_code) == (200, 403, 200)
        assert revoked.json()["detail"] == "n0 was revoked: `farside node accept` or `invite` lets it in again"

    run(tmp_path, test)


# ---------------------------------------------------------------------------- what the log says of who is refused


async def used(api: Api) -> str:
    invitation = await invited(api)
    await (await attempt(api, invitation)).end()
    return invitation


@pytest.mark.parametrize(
    ("token_of", "reason"),
    [
        (lambda api: invited(api, valid_s=1e-6), "`farside node invite n9` makes another"),
        (used, "this token is not known here; an invitation counts once"),
        (lambda _: asyncio.sleep(0, "invite-garbled"), "this token is not known here; an invitation counts once"),
        (lambda _: asyncio.sleep(0, ""), "no token: give one"),
    ],
    ids=["over", "used", "garbled", "none"],
)
def test_the_log_says_once_a_minute_which_address_was_refused_and_why(
    token_of: Callable[[Api], Awaitable[str]], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """[L6]"""

    async def test(api: Api) -> None:
        token = await token_of(api)

        refused = [await attempt(api, token) for _ in range(3)]

        assert [one.answer["status"] for one in refused] == [401] * 3
        (line,) = [one for one in caplog.records if one.message == "refused an agent"]
        fields = vars(line)["farside_fields"]
        assert fields["address"] == "192.0.2.7"
        assert reason in fields["reason"]

    run(tmp_path, test)


# ------------------------------------------------------------------------------------- tokens with an end


def test_a_token_counts_until_its_end_and_a_session_by_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "WATCH_PERIOD_S", 0.01)

    async def test(api: Api) -> None:
        watch = asyncio.ensure_future(api.sessions.watch_tokens())
        end_s = time.time() + 3600
        token = add_token(tmp_path / "tokens.toml", "n9", Role.NODE, expires_s=end_s)
        joined = await attempt(api, token)
        assert "welcome" in joined.answer

        monkeypatch.setattr(time, "time", lambda: end_s + 1)

        assert "not known here" in (await joined.closed())["reason"]
        assert (await attempt(api, token)).answer["status"] == 401
        watch.cancel()
        await asyncio.gather(watch, joined.end(), return_exceptions=True)

    run(tmp_path, test)


def test_tokens_are_revoked_by_owner_or_by_id_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    for name in ("ann", "ann", "n1", "n2"):
        add_token(file, name, Role.USER, expires_s=4e9 if name == "n2" else math.inf)
    file.chmod(0o640)
    of_ann = [row for row in read_tokens(file) if row.name == "ann"]

    gone = revoke_tokens(file, frozenset({of_ann[0].id, "n1"}))

    assert {row.sha256 for row in gone} == {of_ann[0].sha256, *(row.sha256 for row in gone if row.name == "n1")}
    assert [(row.name, row.expires_s) for row in read_tokens(file)] == [("ann", math.inf), ("n2", 4e9)]
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_name_without_a_token_is_refused_and_nothing_is_revoked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    add_token(file, "n1", Role.NODE)

    with pytest.raises(ConfigError, match=rf"{file}: no token of n7; see `farside tokens list`"):
        revoke_tokens(file, frozenset({"n1", "n7"}))

    assert [row.name for row in read_tokens(file)] == ["n1"]
