"""An agent's connection: read on while a few frames wait, and no further than that."""

import asyncio
from typing import Any
from unittest.mock import Mock

import uvicorn
from uvicorn.server import ServerState

from farside.scheduler.manager.nodes.agent_socket import WAITING_MAX, AgentSocketProtocol


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Takes no frame by itself."""


def line() -> tuple[AgentSocketProtocol, Mock]:
    """A protocol in the running loop, and the transport under it."""
    config = uvicorn.Config(_app, lifespan="off", log_config=None)
    protocol = AgentSocketProtocol(config=config, server_state=ServerState(), app_state={})
    transport = Mock(spec=asyncio.Transport)
    transport.get_extra_info.return_value = None
    protocol.connection_made(transport)
    return protocol, transport


def come(protocol: AgentSocketProtocol, count: int) -> None:
    for at in range(count):
        protocol.curr_msg_data_type, protocol.frames = "text", [b"%d" % at]
        protocol.send_receive_event_to_app()


def test_frames_come_in_their_order_and_reading_goes_on_while_few_wait() -> None:
    async def work() -> None:
        protocol, transport = line()

        come(protocol, WAITING_MAX - 1)
        texts = [(await protocol.receive())["text"] for _ in range(WAITING_MAX - 1)]  # type: ignore[typeddict-item]

        assert texts == [str(at) for at in range(WAITING_MAX - 1)]
        transport.pause_reading.assert_not_called()
        transport.resume_reading.assert_not_called()

    asyncio.run(work())


def test_who_floods_is_not_read_from_until_all_that_came_is_taken() -> None:
    async def work() -> None:
        protocol, transport = line()

        come(protocol, 2 * WAITING_MAX)
        transport.pause_reading.assert_called_once()
        for _ in range(2 * WAITING_MAX - 1):
            await protocol.receive()
        transport.resume_reading.assert_not_called()
        await protocol.receive()

        transport.resume_reading.assert_called_once()

    asyncio.run(work())
