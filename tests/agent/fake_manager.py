"""A manager that a test plays: a real WebSocket server, which welcomes, acknowledges and commands."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from farside.agent import messages as m
from farside.agent.protocol import FRAME_BYTES_MAX, PATH, ManagerSide
from tests.support.waiting import until

TOKEN = "node-token"


class FakeManager:
    """Runs in a thread of its own; every method may be called from the test's.

    Attributes:
        hellos: One for each connection.
        reports: As they came, with repetitions.
        probed: Answers to PROBE.
        acknowledges: False: it receives reports and says nothing.
    """

    def __init__(self, *, generation: int = 1, token: str = TOKEN) -> None:
        self.generation, self.token = generation, token
        self.hellos: list[m.Hello] = []
        self.reports: list[m.Report] = []
        self.probed: list[m.Probed] = []
        self.acknowledges = True
        self.closed: list[tuple[int | None, str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: Server | None = None
        self._open: dict[ServerConnection, ManagerSide] = {}
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
                max_size=FRAME_BYTES_MAX,
                compression=None,
            )

        self._server = asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    def vanish(self) -> None:
        """Ends every connection without a word, and listens no more."""

        async def stop() -> None:
            for connection in list(self._open):
                connection.transport.abort()
            if self._server is not None:
                self._server.close()
                await self._server.wait_closed()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._server = None

    def send(self, message: m.ManagerMessage) -> None:
        """To the agent that is connected."""

        async def do() -> None:
            for connection, side in self._open.items():
                await connection.send(side.send(message))

        asyncio.run_coroutine_threadsafe(do(), self._loop).result(10)

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

    def _admit(self, _: ServerConnection, request: Request) -> Response | None:
        wanted = f"Bearer {self.token}"
        status = None
        if request.path != PATH:
            status = HTTPStatus.NOT_FOUND
        elif request.headers.get("Authorization") != wanted:
            status = HTTPStatus.UNAUTHORIZED
        return None if status is None else _.respond(status, "")

    async def _converse(self, connection: ServerConnection) -> None:
        side = ManagerSide()
        with suppress(ConnectionClosed):
            hello = side.receive(await connection.recv())
            assert isinstance(hello, m.Hello)
            await connection.send(side.send(m.Welcome(generation=self.generation)))
            self._open[connection] = side
            self.hellos.append(hello)
            async for frame in connection:
                report = side.receive(frame)
                if isinstance(report, m.Probed):
                    self.probed.append(report)
                    continue
                assert isinstance(report, m.Report)
                self.reports.append(report)
                if self.acknowledges:
                    await connection.send(side.send(m.Ack(seq=report.seq)))
        self._open.pop(connection, None)
        await connection.wait_closed()
        self.closed.append((connection.close_code, connection.close_reason or ""))


@contextmanager
def fake_manager(*, generation: int = 1) -> Iterator[FakeManager]:
    manager = FakeManager(generation=generation)
    manager.begin()
    try:
        yield manager
    finally:
        manager.end()
