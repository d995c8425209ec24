"""A manager that a test plays: a real WebSocket server, which welcomes, acknowledges and commands."""

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from farside.agent import messages as m
from farside.agent.mutual_proof import (
    CODED_BYTES_MAX,
    HEADER,
    NONCE_BYTES,
    Frames,
    PlainFrames,
    answer,
    key_of,
    read_offer,
)
from farside.agent.protocol import PATH, ManagerSide
from farside.proof import key_id
from tests.support.waiting import until

TOKEN = "node-token"


class FakeManager:
    """Runs in a thread of its own; every method may be called from the test's.

    Attributes:
        hellos: One for each connection.
        reports: As they came, with repetitions.
        probed: Answers to PROBE.
        acknowledges: False: it receives reports and says nothing.
        is_of_before: It knows no proofs, and asks for the token.
        shown: Tokens that agents sent it.
    """

    def __init__(self, *, generation: int = 1, token: str = TOKEN, is_of_before: bool = False) -> None:
        self.generation, self.token, self.is_of_before = generation, token, is_of_before
        self.shown: list[str] = []
        self.hellos: list[m.Hello] = []
        self.reports: list[m.Report] = []
        self.probed: list[m.Probed] = []
        self.acknowledges = True
        self.closed: list[tuple[int | None, str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: Server | None = None
        self._open: dict[ServerConnection, ManagerSide] = {}
        self._frames: dict[ServerConnection, Frames] = {}
        self.port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def begin(self) -> None:
        self._thread.start()
        self.listen()

    def end(self) -> None:
        self.vanish()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def listen(self) -> None:
        """Serves; again at the same port after `vanish`."""

        async def start() -> Server:
            return await serve(
                self._converse,
                "127.0.0.1",
                self.port,
                process_request=self._admit,
                process_response=self._prove,
                max_size=CODED_BYTES_MAX,
                compression=None,
            )

        self._server = asyncio.run_coroutine_threadsafe(start(), self._loop).result(60)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    def vanish(self) -> None:
        """Ends every connection without a word, and listens no more."""

        async def stop() -> None:
            for connection in list(self._open):
                connection.transport.abort()
            if self._server is not None:
                self._server.close()
                await self._server.wait_closed()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(60)
        self._server = None

    def send(self, message: m.ManagerMessage) -> None:
        """To the agent that is connected."""

        async def do() -> None:
            for connection, side in self._open.items():
                await self._say(connection, side.send(message))

        asyncio.run_coroutine_threadsafe(do(), self._loop).result(60)

    # ---- looking

    def state(self, task_id: str = "1.0", nth: int = 1) -> m.TaskState | None:
        """The newest that reports and hellos said of a task."""
        told = [state for report in self.reports for state in report.tasks]
        of_it = [state for state in told if (state.task_id, state.start) == (task_id, nth)]
        return of_it[-1] if of_it else None

    def until_state(self, name: str, task_id: str = "1.0", nth: int = 1) -> m.TaskState:
        def there() -> m.TaskState | None:
            state = self.state(task_id, nth)
            return state if state is not None and state.state == name else None

        found = until(there, what=f"{task_id} {name} at the manager", deadline_s=30)
        assert found is not None
        return found

    def until_hellos(self, count: int) -> None:
        until(lambda: len(self.hellos) >= count and self._open, what=f"hello {count}", deadline_s=30)

    # ---- serving

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != PATH:
            return connection.respond(HTTPStatus.NOT_FOUND, "")
        offered = request.headers.get(HEADER)
        if self.is_of_before or offered is None:
            self._frames[connection] = PlainFrames()
            told = request.headers.get("Authorization", "")
            self.shown += [told] if told else []
            is_known = told == f"Bearer {self.token}"
        else:
            is_known = read_offer(offered).key_id == key_id(key_of(self.token))
        if is_known:
            return None
        refusal = connection.respond(HTTPStatus.UNAUTHORIZED, "")
        if not self.is_of_before:
            refusal.headers[HEADER] = "1"
        return refusal

    def _prove(self, connection: ServerConnection, request: Request, response: Response) -> None:
        if connection not in self._frames and response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            offered = read_offer(request.headers[HEADER])
            shown, self._frames[connection] = answer(key_of(self.token), offered, secrets.token_bytes(NONCE_BYTES))
            response.headers[HEADER] = shown

    async def _say(self, connection: ServerConnection, frame: str) -> None:
        await connection.send(self._frames[connection].seal(frame))

    async def _converse(self, connection: ServerConnection) -> None:
        side, frames = ManagerSide(), self._frames[connection]
        with suppress(ConnectionClosed):
            hello = side.receive(frames.open(await connection.recv()))
            assert isinstance(hello, m.Hello)
            await self._say(connection, side.send(m.Welcome(generation=self.generation)))
            self._open[connection] = side
            self.hellos.append(hello)
            async for frame in connection:
                report = side.receive(frames.open(frame))
                if isinstance(report, m.Probed):
                    self.probed.append(report)
                    continue
                assert isinstance(report, m.Report)
                self.reports.append(report)
                if self.acknowledges:
                    await self._say(connection, side.send(m.Ack(seq=report.seq)))
        self._open.pop(connection, None)
        self._frames.pop(connection, None)
        await connection.wait_closed()
        self.closed.append((connection.close_code, connection.close_reason or ""))


@contextmanager
def fake_manager(*, generation: int = 1, is_of_before: bool = False) -> Iterator[FakeManager]:
    manager = FakeManager(generation=generation, is_of_before=is_of_before)
    manager.begin()
    try:
        yield manager
    finally:
        manager.end()
