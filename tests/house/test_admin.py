"""The admin socket, both sides, over a real one."""

import asyncio
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farside import admin
from farside.errors import ConfigError, FarsideError, PeerError
from tests.support.programs import outcome
from tests.support.sandbox import farside


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    name: str
    folder: Path


async def echo(arguments: Mapping[str, object]) -> object:
    return {"got": arguments}


async def answer(_: Mapping[str, object]) -> object:
    return Answer(name="d1", folder=Path("/run"))


async def refuse(_: Mapping[str, object]) -> object:
    raise FarsideError("no\nsuch donor", hint="see status")


async def long_answer(_: Mapping[str, object]) -> object:
    return "x" * admin.LINE_BYTES_MAX


async def break_down(_: Mapping[str, object]) -> object:
    raise KeyError("a fault of ours")


HANDLERS = {"echo": echo, "answer": answer, "refuse": refuse, "long": long_answer, "break": break_down}


def called(path: Path, command: str, **arguments: Any) -> Any:
    """The result of one call, by the blocking client in a thread, at a server that serves meanwhile."""

    async def both() -> Any:
        async with admin.serve(path, HANDLERS):
            return await asyncio.to_thread(lambda: admin.call(path, command, **arguments))

    return asyncio.run(both())


def test_a_command_gets_its_arguments_and_gives_its_result(tmp_path: Path) -> None:
    assert called(tmp_path / "a.sock", "echo", donor="d1", every=3) == {"got": {"donor": "d1", "every": 3}}


def test_dataclasses_and_paths_are_answers_too(tmp_path: Path) -> None:
    assert called(tmp_path / "a.sock", "answer") == {"name": "d1", "folder": "/run"}


def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"^no such donor; see status$"):
        called(tmp_path / "a.sock", "refuse")


def test_a_command_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no command 'stat'; there are answer, break, echo, long, refuse"):
        called(tmp_path / "a.sock", "stat")


def test_a_fault_of_ours_is_an_answer_and_not_the_end(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="internal error: KeyError"):
        called(tmp_path / "a.sock", "break")


def test_an_answer_that_is_too_long_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="longer than"):
        called(tmp_path / "a.sock", "long")


def test_the_asynchronous_client_says_the_same(tmp_path: Path) -> None:
    async def both() -> Any:
        async with admin.serve(tmp_path / "a.sock", HANDLERS):
            return await admin.ask(tmp_path / "a.sock", "echo", number=1)

    assert asyncio.run(both()) == {"got": {"number": 1}}


def test_only_a_process_of_the_right_user_is_asked(tmp_path: Path) -> None:
    """Root does what the answer says: whoever may write in the socket's folder can put another socket there."""
    path, us = tmp_path / "a.sock", os.geteuid()
    asked: list[Mapping[str, object]] = []

    async def note(arguments: Mapping[str, object]) -> object:
        asked.append(arguments)
        return "noted"

    async def both() -> None:
        async with admin.serve(path, {"note": note}):
            with pytest.raises(PeerError, match=f"a process of uid {us} listens there, and it has to be one of uid"):
                await asyncio.to_thread(lambda: admin.call_process_of({us + 1, us + 2}, path, "note"))
            told = await asyncio.to_thread(lambda: admin.call_process_of({us}, path, "note"))
            assert told == ("noted", os.getpid())

    asyncio.run(both())

    assert len(asked) == 1


NONSENSE = (b"", b"no json", b"[]", b'{"command": 3}', b"\xff", b'{"a": "\xff"}', b"{" * 100_000, b'{"a":' * 20_000)


@pytest.mark.parametrize("line", [part + b"\n" for part in NONSENSE])
def test_nonsense_is_answered_and_survived(tmp_path: Path, line: bytes) -> None:
    async def talk() -> tuple[bytes, Any]:
        async with admin.serve(tmp_path / "a.sock", HANDLERS):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "a.sock")
            writer.write(line)
            said = await reader.readline()
            writer.close()
            return said, await admin.ask(tmp_path / "a.sock", "echo")

    said, afterwards = asyncio.run(talk())

    assert b'"ok":false' in said
    assert b"of at most" not in said
    assert afterwards == {"got": {}}


def test_who_speaks_another_protocol_is_answered_without_the_end_of_a_line(tmp_path: Path) -> None:
    async def talk() -> bytes:
        async with admin.serve(tmp_path / "a.sock", HANDLERS):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "a.sock")
            writer.write(b"\x40\x00")
            said = await reader.readline()
            assert await reader.read() == b""
            writer.close()
            return said

    assert b"not a JSON object" in asyncio.run(talk())


def test_a_line_without_end_is_cut_off(tmp_path: Path) -> None:
    async def talk() -> bytes:
        async with admin.serve(tmp_path / "a.sock", HANDLERS):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "a.sock")
            try:
                writer.write(b"{" * (2 * admin.LINE_BYTES_MAX))
                return await reader.read()
            finally:
                writer.close()

    # The server closes with input unread, so that the answer may be lost to a reset.
    try:
        assert b'"ok":false' in asyncio.run(talk())
    except ConnectionError:
        pass


def test_only_its_owner_may_connect(tmp_path: Path) -> None:
    async def mode() -> int:
        async with admin.serve(tmp_path / "a.sock", HANDLERS):
            return stat.S_IMODE((tmp_path / "a.sock").stat().st_mode)

    assert asyncio.run(mode()) == 0o600


def test_the_socket_goes_with_its_server(tmp_path: Path) -> None:
    called(tmp_path / "a.sock", "echo")

    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_can_wait_until_its_last_request_is_answered(tmp_path: Path) -> None:
    """A blockdev that had itself replaced left 50 ms later, on a busy machine before it had answered."""

    async def test() -> tuple[bool, bytes]:
        begun, told = asyncio.Event(), asyncio.Event()

        async def slow(_: Mapping[str, object]) -> object:
            begun.set()
            await told.wait()
            return "done"

        async with admin.serve(tmp_path / "a.sock", {"slow": slow}) as requests:
            reader, writer = await asyncio.open_unix_connection(tmp_path / "a.sock")
            writer.write(b'{"command": "slow"}\n')
            await begun.wait()
        answered = asyncio.ensure_future(requests.answered(60.0))
        await asyncio.sleep(0)
        was_answered = answered.done()
        told.set()
        await answered
        answer = await reader.readline()  # nothing of the server runs between the two
        writer.close()
        return was_answered, answer

    assert asyncio.run(test()) == (False, b'{"ok":true,"result":"done"}\n')


def test_a_socket_that_a_dead_process_left_is_taken_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.fspath(tmp_path / "a.sock"))

    assert called(tmp_path / "a.sock", "echo") == {"got": {}}


def test_a_live_processs_socket_is_not_taken(tmp_path: Path) -> None:
    async def twice() -> None:
        async with admin.serve(tmp_path / "a.sock", HANDLERS):
            await admin.serve(tmp_path / "a.sock", HANDLERS).__aenter__()

    with pytest.raises(ConfigError, match="another process serves it"):
        asyncio.run(twice())


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")

    with pytest.raises(ConfigError, match="no socket"):
        asyncio.run(admin.serve(tmp_path / "precious", HANDLERS).__aenter__())

    assert (tmp_path / "precious").read_text() == "text"


def test_nobody_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no process answers there; is it running"):
        admin.call(tmp_path / "none.sock", "status")


@pytest.mark.parametrize("words", [["daemon", "drain"], ["admin", "status"], ["slurm", "status"]])
def test_a_command_that_has_the_option_says_how_another_socket_is_named(tmp_path: Path, words: list[str]) -> None:
    ended = outcome(farside(*words, "--socket", str(tmp_path / "none")))

    assert ended.stderr.endswith("none: no process answers there; is it running? name its socket with --socket\n")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("path=x", "none: no process answers there; is it running? name its socket with --socket\n"),
        ("timeout_s=3", "timeout_s=3: no command has such an argument; see farside admin --help\n"),
        ("command=stop", "command=stop: no command has such an argument; see farside admin --help\n"),
    ],
)
def test_arguments_of_a_command_are_its_own_whatever_their_names(tmp_path: Path, argument: str, said: str) -> None:
    ended = outcome(farside("admin", "status", argument, "--socket", str(tmp_path / "none")))

    assert ended.stderr.endswith(said)
    assert len(ended.stderr.splitlines()) == 1


def test_a_deployment_that_does_not_run_is_told_without_an_option_that_its_status_lacks(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    (tmp_path / "serving.toml").write_text('admin_socket = "s"\n[model.a]\nfile = "a.onnx"\nslo_ms = 9\n')
    ended = outcome(farside("serve", "status", str(tmp_path)))

    assert "/s: no process answers there; is the deployment running? " in ended.stderr
    assert "--socket" not in ended.stderr


def test_an_answer_whose_text_is_no_utf8_is_refused_in_one_line(tmp_path: Path) -> None:
    async def talk() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b'{"ok": true, "result": "\xff\xfe"}\n')
            writer.close()

        async with await asyncio.start_unix_server(answer, tmp_path / "a.sock"):
            await asyncio.to_thread(admin.call, tmp_path / "a.sock", "status")

    with pytest.raises(PeerError, match="is no Farside process"):
        asyncio.run(talk())


def test_a_process_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(os.fspath(tmp_path / "a.sock"))
        silent.listen()

        with pytest.raises(PeerError, match="no answer in time"):
            admin.call(tmp_path / "a.sock", "status", timeout_s=0.05)
