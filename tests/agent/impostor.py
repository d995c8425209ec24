"""A program in the manager's place, which takes any agent for its own; and a thief of the manager's port."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Self

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from farside.agent import messages as m
from farside.agent.mutual_proof import HEADER, NONCE_BYTES, answer, key_of, read_offer
from farside.agent.protocol import encode
from tests.agent.frames import SPEC, start

GENERATION = 3000
TRY_EVERY_S = 0.001

ASKS_FOR_TOKEN = "ask"

Proof = Callable[[str], str]
"""What is shown to an agent for its offer; empty: nothing."""


def of_before(_: str) -> str:
    """As a manager of the version before, which knows no proofs and asks for the token."""
    return ASKS_FOR_TOKEN


def proofs(token: str) -> Mapping[str, Proof]:
    """All that an impostor can show for the proof of the node's ``token``, by what it is."""

    def of_another_token(offered: str) -> str:
        return answer(key_of("another"), read_offer(offered), b"m" * NONCE_BYTES)[0]

    def of_another_connection(offered: str) -> str:
        # As one has it who listened when the true manager answered.
        other = read_offer(f"{offered.rpartition(' ')[0]} {'0' * 64}")
        return answer(key_of(token), other, b"m" * NONCE_BYTES)[0]

    return {
        "none": lambda _: "",
        "garbled": lambda _: "1 nonsense",
        "the agent's own words": lambda offered: offered,
        "of another token": of_another_token,
        "of another connection": of_another_connection,
    }


@dataclass
class Impostor:
    """Shows agents ``proof``, welcomes them, and has them run a program.

    Attributes:
        heard: All that agents said, headers included, as text.
        raw: The bytes that came, as they came; text in frames is masked there.
        met: Openings of connections by agents.
    """

    proof: Proof
    spec: m.TaskSpec = SPEC
    heard: list[str] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    met: int = 0

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[int]:
        """Has the port for the body."""
        server = await serve(
            self._converse, "127.0.0.1", port, process_request=self._ask, process_response=self._show,
            compression=None, create_connection=self._tapped(),
        )  # fmt: skip
        try:
            yield next(iter(server.sockets)).getsockname()[1]
        finally:
            server.close()
            await server.wait_closed()

    def _tapped(self) -> type[ServerConnection]:
        raw = self.raw

        class Tapped(ServerConnection):
            """A connection whose bytes are kept."""

            def data_received(self, data: bytes) -> None:
                """Keeps them."""
                raw.extend(data)
                super().data_received(data)

        return Tapped

    def _ask(self, connection: ServerConnection, request: Request) -> Response | None:
        asks = self.proof(request.headers.get(HEADER, "")) == ASKS_FOR_TOKEN
        has_it = "Authorization" in request.headers
        return connection.respond(HTTPStatus.UNAUTHORIZED, "") if asks and not has_it else None

    def _show(self, _: ServerConnection, request: Request, response: Response) -> None:
        self.heard += [f"{name}: {value}" for name, value in request.headers.raw_items()]
        shown = self.proof(request.headers.get(HEADER, ""))
        if shown not in ("", ASKS_FOR_TOKEN):
            response.headers[HEADER] = shown
        self.met += 1

    async def _converse(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await connection.send(encode(m.Welcome(generation=GENERATION)))
            await connection.send(encode(start("1.0", generation=GENERATION, spec=self.spec)))
            async for frame in connection:
                self.heard.append(str(frame))


class Thief:
    """Has an impostor on the manager's port from the moment that it is free, in a thread, until it leaves.

    Attributes:
        has_port: Set when it has it.
    """

    def __init__(self, impostor: Impostor, port: int) -> None:
        self.has_port = threading.Event()
        self._impostor, self._port = impostor, port
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._hold()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leaving.set()
        self._thread.join()

    async def _hold(self) -> None:
        while not self._leaving.is_set():
            try:
                async with self._impostor.listening(self._port):
                    self.has_port.set()
                    await asyncio.to_thread(self._leaving.wait)
            except OSError:  # the manager has it
                await asyncio.sleep(TRY_EVERY_S)
