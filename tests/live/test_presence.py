"""Nodes that are heard by other managers than this one."""

import asyncio
import math
from pathlib import Path

import pytest

from farside.scheduler.manager.model.presence import LEASE_GRACE_S, Fronts, Presence, RemotePresence, front_key
from farside.scheduler.manager.nodes import sessions as sessions_module
from farside.scheduler.manager.nodes.sessions import AgentSessions
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.manager.store.presence import FORGOTTEN_S, tell
from tests.live.test_api import Api, api_test


def said(beat: int, *nodes: str) -> dict[str, Presence]:
    return {"other": Presence(beat=beat, nodes=frozenset(nodes))}


def test_who_goes_on_telling_is_heard_and_who_repeats_himself_is_not() -> None:
    elsewhere = RemotePresence()
    elsewhere.told(said(1, "n0"), 10.0)
    elsewhere.told(said(1, "n0"), 20.0)
    before_s = elsewhere.heard_s("n0")
    elsewhere.told(said(2, "n0"), 30.0)

    assert (before_s, elsewhere.heard_s("n0"), elsewhere.heard_s("n1")) == (10.0, 30.0, -math.inf)


def test_a_node_that_is_named_no_more_was_heard_when_it_was_named_last() -> None:
    elsewhere = RemotePresence()
    elsewhere.told(said(1, "n0"), 10.0)
    elsewhere.told(said(2), 20.0)

    assert elsewhere.heard_s("n0") == 10.0


def test_managers_of_one_store_read_what_the_others_wrote_last(tmp_path: Path) -> None:
    store = EventStore(f"sqlite:///{tmp_path}/m.db")
    upgrade(store)

    assert tell(store, "gone", 1, ["n9"], 0.0) == {}
    tell(store, "a", 1, ["n0"], FORGOTTEN_S + 1)
    tell(store, "a", 2, ["n0", "n1"], FORGOTTEN_S + 2)
    found = tell(store, "b", 1, [], FORGOTTEN_S + 3)

    assert found == {"a": Presence(beat=2, nodes=frozenset({"n0", "n1"}))}
    store.close()


def test_a_front_that_came_to_another_manager_is_heard_by_all(tmp_path: Path) -> None:
    store = EventStore(f"sqlite:///{tmp_path}/m.db")
    upgrade(store)
    elsewhere, key = RemotePresence(), front_key("ann", "chat")
    here, there = Fronts(1.0, RemotePresence()), Fronts(2.0, elsewhere)
    here.heard("ann", "chat", 5.0)

    tell(store, "a", 1, ["n0", *here.since(0.0, 6.0)], 6.0)
    elsewhere.told(tell(store, "b", 1, [], 7.0), 7.0)
    tell(store, "a", 2, ["n0", *here.since(6.0, 12.0)], 12.0)  # it has said nothing since
    elsewhere.told(tell(store, "b", 2, [], 13.0), 13.0)

    assert (elsewhere.heard_s(key), elsewhere.heard_s("n0")) == (7.0, 13.0)
    assert [one.served_s("ann", "chat") for one in (here, there)] == [5.0, 7.0]
    assert [one.served_s("bob", "chat") for one in (here, there)] == [1.0, 2.0]
    here.since(0.0, 6.0 + LEASE_GRACE_S)
    assert here.served_s("ann", "chat") == 1.0
    store.close()


def test_a_front_that_came_to_one_manager_serves_its_leases_at_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "WATCH_PERIOD_S", 0.001)

    async def test(api: Api) -> None:
        other = AgentSessions(api.log, api.callers, 0.1)
        begun_s = other.fronts.served_s("ann", "chat")
        api.sessions.fronts.heard("ann", "chat", api.log.clock.now_s())
        watching = [asyncio.create_task(one.watch_silence()) for one in (api.sessions, other)]
        async with asyncio.timeout(30):
            while other.fronts.served_s("ann", "chat") == begun_s:
                await asyncio.sleep(0.001)
        for one in watching:
            one.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

        assert other.fronts.served_s("ann", "chat") > begun_s
        assert other.fronts.served_s("bob", "chat") == begun_s

    api_test(test, tmp_path)
