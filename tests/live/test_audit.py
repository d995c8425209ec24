"""The audit: who did what, what was refused, who looked at whose jobs; and that nobody can fill the store with it."""

import asyncio
import os
import pwd
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.model.event import AccessRecorded
from farside.scheduler.manager.view.audit import NOTES_PER_MINUTE, REPEAT_S, AccessGate, split_cause
from tests.live.test_api import THIRD, Api, an_api

USER = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))
NAME, UID = USER.pw_name, USER.pw_uid


async def lines(api: Api, **query: str | int) -> list[tuple[str, ...]]:
    found = (await api.as_uid(0).get("/v1/audit", params=query)).json()["entries"]
    return [tuple(one[key] for key in ("actor", "proof", "action", "object", "result")) for one in reversed(found)]


def test_what_people_do_is_told_with_who_they_are_and_what_came_of_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path) as api:
            user, operator = api.as_uid(UID), api.as_uid(0)
            await user.post("/v1/jobs", json={"argv": ["true"], "count": 2})
            await user.post("/v1/jobs/1_0/hold")
            await user.post("/v1/jobs/77/cancel")
            await user.post("/v1/nodes/n0/drain", json={})
            await user.post("/v1/reservations/m1/cancel")
            await operator.post("/v1/nodes/n0/drain", json={"reason": "fan"})
            await api.as_role(Role.OPERATOR).post("/v1/jobs/1_1/cancel")
            await user.post("/v1/jobs", json={"argv": ["true"], "gpus": 99})

            told = await lines(api)

        me, root = f"user {NAME}", "operator root"
        assert told == [
            (me, f"uid {UID}", "submit", "jobs 1_0 to 1_1", "done"),
            (me, f"uid {UID}", "hold", "job 1_0", "done"),
            (me, f"uid {UID}", "cancel", "77", "404: job 77: you have no such job"),
            (me, f"uid {UID}", "drain", "n0", f"403: {NAME} is not an operator"),
            (me, f"uid {UID}", "unreserve", "m1", f"403: {NAME} is not an operator"),
            (root, "uid 0", "drain", "node n0", "done"),
            ("operator carl", "token", "cancel", "job 1_1", "done"),
            (me, f"uid {UID}", "submit", "", told[-1][4]),
        ]
        assert told[-1][4].startswith("422: gpus: it asks for 99, and the cluster has")

    asyncio.run(run())


def test_an_operator_who_looks_at_others_jobs_is_noted_once_and_a_user_at_their_own_never(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path, operators=frozenset({THIRD.pw_name})) as api:
            await api.as_uid(UID).post("/v1/jobs", json={"argv": ["true"]})
            await api.as_uid(THIRD.pw_uid).post("/v1/jobs", json={"argv": ["true"]})
            for _ in range(3):
                for path in ("/v1/jobs/1", "/v1/jobs/2", "/v1/jobs"):
                    await api.as_uid(THIRD.pw_uid).get(path)
                    await api.as_uid(UID).get(path)

            told = await lines(api)

        assert [line[2:] for line in told] == [
            ("submit", "job 1", "done"),
            ("submit", "job 2", "done"),
            ("show", "job 1", "read"),
            ("jobs", "jobs of all", "read"),
        ]
        assert {line[0] for line in told[2:]} == {f"operator {THIRD.pw_name}"}

    asyncio.run(run())


def test_it_comes_in_pages_and_of_one_person_and_only_to_operators(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path) as api:
            for _ in range(5):
                await api.as_uid(UID).post("/v1/jobs", json={"argv": ["true"]})
            await api.as_uid(0).post("/v1/nodes/n0/drain", json={})

            first = (await api.as_uid(0).get("/v1/audit", params={"limit": 4})).json()
            rest = (await api.as_uid(0).get("/v1/audit", params={"limit": 4, "before": first["before"]})).json()
            one = await lines(api, actor=NAME)
            nobody = await lines(api, actor="%")
            refused = await api.as_uid(UID).get("/v1/audit")

        seen = [entry["seq"] for entry in (*first["entries"], *rest["entries"])]
        assert len(seen) == 6
        assert seen == sorted(seen, reverse=True)
        assert rest["before"] is None
        assert len(one) == 5
        assert nobody == []
        assert refused.status_code == 403

    asyncio.run(run())


def test_who_is_not_known_leaves_no_trace_in_the_store(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path) as api:
            await api.as_role(None).post("/v1/jobs", json={"argv": ["true"]})

            assert await lines(api) == []

    asyncio.run(run())


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 30)), max_size=300))
def test_no_actor_gets_more_than_so_many_notes_a_minute_and_what_is_left_out_is_counted(
    asked: list[tuple[int, float]],
) -> None:
    gate, now_s = AccessGate(), 0.0
    written: list[tuple[float, AccessRecorded]] = []

    for target, pause_s in asked:
        now_s += pause_s
        note = gate.admitted(
            "user eve, uid 7", AccessRecorded(action="cancel", target=str(target), result="404"), now_s
        )
        written += [(now_s, note)] if note else []

    for at_s, _ in written:
        assert sum(at_s <= other_s < at_s + 60 for other_s, _ in written) <= 2 * NOTES_PER_MINUTE
    for number, (at_s, note) in enumerate(written):
        again = [other_s for other_s, other in written[number + 1 :] if other.target == note.target]
        assert all(other_s - at_s >= REPEAT_S for other_s in again)


def test_what_was_left_out_is_told_with_the_next_note() -> None:
    gate = AccessGate()
    notes = [AccessRecorded(action="cancel", target=str(at), result="404") for at in range(NOTES_PER_MINUTE + 10)]

    written = [gate.admitted("user eve, uid 7", note, 1.0) for note in notes]
    later = gate.admitted("user eve, uid 7", AccessRecorded(action="hold", target="1", result="404"), 62.0)

    assert sum(one is not None for one in written) == NOTES_PER_MINUTE
    assert later is not None
    assert later.result == "404; 10 more were not written down"


def test_what_an_older_version_wrote_has_no_proof() -> None:
    assert split_cause("user ann") == ("user ann", "")
    assert split_cause("operator carl, token") == ("operator carl", "token")
