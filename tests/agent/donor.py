"""What a donor's admin socket says of it, as far as an agent looks."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from farside import admin

SESSIONS = [{"borrower": f"b{count}", "connected": True, "silent_s": 0.0, "slabs": count} for count in range(70)]
DONOR: dict[str, Any] = {
    "node": "d1", "listen": ["unix:/run/d.sock", "tcp:0.0.0.0:7677"], "has_rdma": True, "closing": False,
    "draining": False, "slab_bytes": 1 << 26, "memory": {"slabs_bytes": 99, "free_slabs": 3}, "sessions": SESSIONS,
}  # fmt: skip


@contextmanager
def serving(path: Path, status: object) -> Iterator[None]:
    """An admin socket that answers with this status, from a thread."""
    loop = asyncio.new_event_loop()

    async def told(_: object) -> object:
        return status

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    served = AsyncExitStack()
    asyncio.run_coroutine_threadsafe(served.enter_async_context(admin.serve(path, {"status": told})), loop).result(60)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(served.aclose(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
