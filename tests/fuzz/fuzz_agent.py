"""Fuzz target: the agents' protocol, both ends. `python -m tests.fuzz.fuzz_agent CORPUS -max_total_time=5`.

Random frames are messages or RemoteProtocolError and nothing else; and without the key no frame is opened.

Byte 0 of an input is a `Script`; frames follow, with a zero byte between.
"""

import sys
from enum import IntFlag

import atheris
from atheris.import_hook import instrument_imports

with instrument_imports(include=["farside"], enable_loader_override=False):
    from farside.agent import messages as m
    from farside.agent import mutual_proof
    from farside.agent.protocol import REASON_BYTES_MAX, AgentSide, ManagerSide, close_reason
    from farside.errors import RemoteProtocolError
    from tests.agent.frames import HELLO

KEY = mutual_proof.key_of("a token that nobody guesses")
NONCE = bytes(range(32))


class Script(IntFlag):
    """How an input is used."""

    AGENT = 1  # the frames come to an agent; else to a manager
    OPEN = 2  # after HELLO and WELCOME; else before
    CODED = 4  # the other end has proved itself: no frame of an input has its code
    HEADERS = 8  # the frames are headers of the proof instead


def begun(*, is_open: bool) -> tuple[AgentSide, ManagerSide]:
    """Both ends, before anything was said or after WELCOME."""
    agent, manager = AgentSide(seen_generation=2), ManagerSide()
    if is_open:
        manager.receive(agent.send(HELLO))
        agent.receive(manager.send(m.Welcome(generation=3)))
    return agent, manager


def headers(parts: list[bytes]) -> None:
    """An offer is one or a fault, and no answer proves a key that its maker does not have."""
    for part in parts:
        text = part.decode("latin-1")
        try:
            mutual_proof.answer(KEY, mutual_proof.read_offer(text), NONCE)
        except RemoteProtocolError:
            pass
        try:
            mutual_proof.check_answer(KEY, mutual_proof.offer(KEY, NONCE), text)
        except RemoteProtocolError:
            continue
        raise AssertionError("an answer was taken for a proof")


def converse(data: bytes) -> None:
    """One connection."""
    script, parts = Script(data[0] & 15) if data else Script(0), data[1:].split(b"\0")
    if script & Script.HEADERS:
        headers(parts)
        return
    agent, manager = begun(is_open=bool(script & Script.OPEN))
    _, coded = mutual_proof.answer(KEY, mutual_proof.offer(KEY, NONCE), NONCE)
    frames = coded if script & Script.CODED else mutual_proof.PlainFrames()
    generation = agent.generation
    fault: RemoteProtocolError | None = None
    try:
        for part in parts:
            opened = frames.open(part)
            assert not script & Script.CODED, "a frame without a code was opened"
            (agent if script & Script.AGENT else manager).receive(opened)
            assert agent.generation >= generation
    except RemoteProtocolError as error:
        fault = error
    if fault is not None:
        assert len(close_reason(fault).encode()) <= REASON_BYTES_MAX
        assert "\n" not in close_reason(fault)


if __name__ == "__main__":
    atheris.Setup(sys.argv, converse)
    atheris.Fuzz()
