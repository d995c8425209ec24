"""Nodes that are heard by other managers than this one."""

import math
from pathlib import Path

from farside.scheduler.manager.model.presence import Presence, RemotePresence
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.manager.store.presence import FORGOTTEN_S, tell


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
