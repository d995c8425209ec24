"""Programs in the manager's place on ws://, and between it and the agent: no token is sent, no command obeyed [H2]."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from farside.agent.mutual_proof import HEADER, key_of
from farside.agent.protocol import encode
from farside.agent.run.ledger import Command
from farside.agent.session import Session
from tests.agent.fake_manager import TOKEN, FakeManager, fake_manager
from tests.agent.frames import start
from tests.agent.impostor import Impostor, proofs
from tests.agent.one_session import session, until_connected

LIMIT_S = 60.0
Commands = list[Command]


PROOFS = proofs(TOKEN)


async def until_problem(made: Session, text: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while text not in made.last_problem:
            await asyncio.sleep(0.005)


async def ended(*running: "asyncio.Future[None]") -> None:
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("name", PROOFS)
def test_a_program_in_the_managers_place_gets_no_token_and_is_not_obeyed(name: str, tmp_path: Path) -> None:
    impostor, obeyed = Impostor(PROOFS[name]), Commands()

    async def test() -> str:
        async with impostor.listening() as port:
            made = session(tmp_path, f"ws://127.0.0.1:{port}", take=lambda command, _: obeyed.append(command))
            running = asyncio.ensure_future(made.run())
            await until_problem(made, "proof")
            await ended(running)
            return made.last_problem

    problem = asyncio.run(test())

    assert "proof" in problem
    assert obeyed == []
    # Nothing but the offer: neither token nor hash, nor HELLO, which says what runs here.
    assert not [said for said in impostor.heard if TOKEN in said or key_of(TOKEN).hex() in said or "hello" in said]


def test_an_impostor_between_two_lives_of_the_manager_gets_nothing(tmp_path: Path) -> None:
    rounds = 3
    impostor, obeyed = Impostor(PROOFS["of another connection"]), Commands()

    async def test(manager: FakeManager) -> None:
        made = session(tmp_path, manager.url, take=lambda command, _: obeyed.append(command))
        running = asyncio.ensure_future(made.run())
        for _ in range(rounds):
            await until_connected(made)
            await asyncio.to_thread(manager.vanish)
            async with impostor.listening(manager.port):
                await until_problem(made, "not this cluster's manager")
            await asyncio.to_thread(manager.listen)
        await until_connected(made)
        await asyncio.to_thread(manager.until_hellos, rounds + 1)
        await asyncio.to_thread(manager.send, start("7.0", generation=manager.generation))
        async with asyncio.timeout(LIMIT_S):
            while not obeyed:
                await asyncio.sleep(0.005)
        await ended(running)

    with fake_manager() as manager:
        asyncio.run(test(manager))
        shown = manager.shown

    assert [command.task_id for command in obeyed] == ["7.0"]
    assert (shown, [said for said in impostor.heard if TOKEN in said]) == ([], [])


def changed(frame: str) -> str:
    return frame.replace('"task_id":"7.0"', '"task_id":"8.0"')


def forged(frame: str) -> str:
    return encode(start("9.0", generation=1)) if '"start"' in frame else frame


@pytest.mark.parametrize("spoil", [changed, forged])
def test_a_relay_that_changes_a_command_ends_the_connection(spoil: Callable[[str], str], tmp_path: Path) -> None:
    obeyed = Commands()

    async def test(manager: FakeManager) -> None:
        async def pass_on(agent: ServerConnection) -> None:
            assert agent.request is not None
            async with asyncio.TaskGroup() as group:
                truth = truths.pop(agent.request.headers[HEADER])
                group.create_task(one_way(agent, truth, lambda frame: frame))
                group.create_task(one_way(truth, agent, spoil))

        async def one_way(source: object, target: object, through: Callable[[str], str]) -> None:
            with suppress(ConnectionClosed):
                async for frame in source:  # type: ignore[attr-defined]
                    await target.send(through(str(frame)))  # type: ignore[attr-defined]
            await target.close()  # type: ignore[attr-defined]

        truths: dict[str, object] = {}

        async def meet(_: ServerConnection, request: Request) -> None:
            offered = request.headers[HEADER]
            truths[offered] = await connect(
                manager.url + request.path, additional_headers={HEADER: offered}, compression=None
            )

        def show(_: ServerConnection, request: Request, response: Response) -> None:
            told = truths[request.headers[HEADER]].response  # type: ignore[attr-defined]
            response.headers[HEADER] = told.headers[HEADER]

        async with serve(
            pass_on, "127.0.0.1", 0, process_request=meet, process_response=show, compression=None
        ) as relay:
            port = next(iter(relay.sockets)).getsockname()[1]
            made = session(tmp_path, f"ws://127.0.0.1:{port}", take=lambda command, _: obeyed.append(command))
            running = asyncio.ensure_future(made.run())
            await until_connected(made)
            await asyncio.to_thread(manager.until_hellos, 1)
            await asyncio.to_thread(manager.send, start("7.0", generation=1))
            await until_problem(made, "no code of the peer that proved itself")
            await ended(running)

    with fake_manager() as manager:
        asyncio.run(test(manager))

    assert obeyed == []


def test_a_manager_of_the_version_before_is_obeyed_only_where_the_setting_says_so(tmp_path: Path) -> None:
    async def test(manager: FakeManager) -> tuple[str, bool, list[str]]:
        strict = session(tmp_path, manager.url)
        running = asyncio.ensure_future(strict.run())
        await until_problem(strict, "cannot prove itself")
        shown = list(manager.shown)
        await ended(running)
        lenient = session(tmp_path, manager.url, takes_unproved=True)
        running = asyncio.ensure_future(lenient.run())
        await until_connected(lenient)
        is_proved = lenient.is_proved
        await ended(running)
        return strict.last_problem, is_proved, shown

    with fake_manager(is_of_before=True) as manager:
        problem, is_proved, shown = asyncio.run(test(manager))

    assert "accept_unproved_manager = true" in problem
    assert (is_proved, shown) == (False, [])


def test_a_setting_that_takes_any_manager_still_prefers_one_that_proves_itself(tmp_path: Path) -> None:
    async def test(manager: FakeManager) -> bool:
        made = session(tmp_path, manager.url, takes_unproved=True)
        running = asyncio.ensure_future(made.run())
        await until_connected(made)
        is_proved = made.is_proved
        await ended(running)
        return is_proved

    with fake_manager() as manager:
        is_proved = asyncio.run(test(manager))
        shown = manager.shown

    assert (is_proved, shown) == (True, [])
