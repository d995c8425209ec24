"""Presence table: which nodes' agents, and fronts of deployments, are heard by which manager of one store."""

import json
from collections.abc import Iterable, Mapping

from sqlalchemy import delete, insert, select

from farside.scheduler.manager.model.presence import Presence
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.table import presence

# Each process of an API has a new random name, so rows of ended processes stay behind; they go after a day.
FORGOTTEN_S = 86_400.0


def tell(store: EventStore, manager: str, beat: int, nodes: Iterable[str], now_s: float) -> Mapping[str, Presence]:
    """Writes what this API hears, and returns what all others said last, by their names.

    Raises:
        StoreError: The database could not do it.
    """
    with store.writing() as connection:
        mine, old = presence.c.manager == manager, presence.c.at_s < now_s - FORGOTTEN_S
        connection.execute(delete(presence).where(mine | old))
        row = {"manager": manager, "beat": beat, "at_s": now_s, "nodes": json.dumps(sorted(nodes))}
        connection.execute(insert(presence), [row])
        others = connection.execute(select(presence).where(presence.c.manager != manager)).all()
    return {row.manager: Presence(beat=row.beat, nodes=frozenset(json.loads(row.nodes))) for row in others}
