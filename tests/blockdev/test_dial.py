"""How a borrower reaches a donor whose queue of connections is full."""

import asyncio
import socket
from typing import Any
from unittest.mock import patch

from farside.blockdev.donor import dial


def test_a_first_packet_that_was_dropped_is_followed_by_another_before_the_kernel_sends_it_again() -> None:
    """[M1] Strangers who come faster than a donor accepts have the kernel drop packets for a second at least."""
    tries: list[tuple[Any, ...] | str] = []
    ours, theirs = socket.socketpair()

    async def connect(_: int, address: tuple[Any, ...] | str) -> socket.socket:
        tries.append(address)
        if len(tries) < 3:
            await asyncio.Event().wait()
        return ours

    with ours, theirs, patch.object(dial, "CONNECT_AGAIN_S", 0.001), patch.object(dial, "_connect", connect):
        assert asyncio.run(asyncio.wait_for(dial.connect("tcp:127.0.0.1:7677"), 60)) is ours

    assert tries == [("127.0.0.1", 7677)] * 3
