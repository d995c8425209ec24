"""The end of a store whose readers were cancelled."""

import asyncio

from farside.scheduler.manager.store.event_store import EventStore


async def close_after_calls(*stores: EventStore) -> None:
    """Closes stores once no thread has a call under way: the connection of one that ends later would stay open."""
    await asyncio.get_running_loop().shutdown_default_executor()
    for store in stores:
        store.close()
