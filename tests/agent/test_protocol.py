"""The frames between node agents and the manager, and their order."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.protocol import (
    FRAME_BYTES_MAX,
    REASON_BYTES_MAX,
    AgentSide,
    CloseCode,
    ManagerSide,
    close_reason,
    decode_from_agent,
    decode_from_manager,
    encode,
)
from farside.errors import LocalProtocolError, RemoteProtocolError
from tests.agent.frames import HELLO, SPEC, agent_messages, manager_messages, report, start


@given(agent_messages)
def test_what_an_agent_sends_arrives_as_it_was(message: m.AgentMessage) -> None:
    assert decode_from_agent(encode(message)) == message


@given(manager_messages)
def test_what_a_manager_sends_arrives_as_it_was(message: m.ManagerMessage) -> None:
    assert decode_from_manager(encode(message)) == message


def test_a_frame_is_a_json_object_with_version_and_type() -> None:
    assert msgspec.json.decode(encode(m.Ack(seq=7))) == {"v": 1, "type": "ack", "seq": 7}


@given(st.text() | st.binary())
def test_any_other_text_is_refused_with_one_line(frame: str | bytes) -> None:
    for decode in (decode_from_agent, decode_from_manager):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(frame)
        assert "\n" not in str(caught.value)
        assert caught.value.code in set(CloseCode)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(manager_messages, st.data())
def test_a_frame_with_a_spoilt_field_is_read_or_refused_and_nothing_else(
    message: m.ManagerMessage, data: st.DataObject
) -> None:
    frame = msgspec.json.decode(encode(message), type=dict[str, Any])
    frame[data.draw(st.sampled_from(sorted(frame)))] = data.draw(json_values)

    with suppress(RemoteProtocolError):
        decode_from_manager(msgspec.json.encode(frame))


@given(agent_messages, st.integers(0, 400))
def test_a_frame_cut_short_is_refused(message: m.AgentMessage, cut: int) -> None:
    frame = encode(message)

    with pytest.raises(RemoteProtocolError):
        decode_from_agent(frame[: min(cut, len(frame) - 1)])


def test_fields_of_a_later_version_are_skipped() -> None:
    assert decode_from_manager('{"v":1,"type":"ack","seq":2,"later":[{"a":1}]}') == m.Ack(seq=2)


def test_a_kind_of_end_that_a_later_version_has_is_read_as_another() -> None:
    state = m.TaskState(task_id="1.0", start=1, state="exited", at_s=0.0, kind=m.EndKind.TIME_LIMIT)
    frame = encode(report(1, state)).replace(m.EndKind.TIME_LIMIT.value, "of-a-later-version")

    told = decode_from_agent(frame)

    assert isinstance(told, m.Report)
    assert told.tasks[0].kind is m.EndKind.OTHER


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(RemoteProtocolError, match="protocol version 9 is not spoken here, only 1 to 1") as caught:
        decode_from_manager('{"v":9,"type":"ack","seq":2}')
    assert caught.value.code == CloseCode.VERSION


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(
        RemoteProtocolError, match="no type 'reboot'; there are welcome, ack, start, stop, extend, forget"
    ):
        decode_from_manager('{"v":1,"type":"reboot"}')


def test_neither_side_may_speak_for_the_other() -> None:
    with pytest.raises(RemoteProtocolError, match="no type 'hello'"):
        decode_from_manager(encode(HELLO))
    with pytest.raises(RemoteProtocolError, match="no type 'start'"):
        decode_from_agent(encode(start()))


def test_a_frame_longer_than_a_mebibyte_is_refused_unread() -> None:
    with pytest.raises(RemoteProtocolError, match="at most 1048576 bytes"):
        decode_from_manager('{"v":1,"type":"ack","seq":1,"x":"' + "ü" * (FRAME_BYTES_MAX // 2) + '"}')


def test_nested_brackets_end_in_a_refusal() -> None:
    with pytest.raises(RemoteProtocolError, match="recursion"):
        decode_from_manager('{"v":1,"type":"ack","seq":1,"x":' + "[" * 100_000 + "]" * 100_000 + "}")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"argv": ()}, "argv"),
        ({"argv": ("a\0b",)}, "argv"),
        ({"argv": ("x" * 200_000,)}, "argv"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"env": {f"A{number}": "" for number in range(1025)}}, "env"),
        ({"cwd": "relative"}, "cwd"),
        ({"user": "al ice"}, "user"),
        ({"user": "alice\n"}, "user"),
        ({"gpus": (64,)}, "gpus"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"master_port": 0}, "master_port"),
        ({"grace_s": float("nan")}, "grace_s"),
    ],
)
def test_a_task_out_of_bounds_is_neither_sent_nor_taken(change: dict[str, Any], says: str) -> None:
    bad = start(spec=msgspec.structs.replace(SPEC, **change))
    forged = msgspec.json.encode({"v": 1, "type": "start", **msgspec.to_builtins(bad)})

    with pytest.raises(LocalProtocolError, match=says):
        encode(bad)
    with pytest.raises(RemoteProtocolError, match=says):
        decode_from_manager(forged)


@pytest.mark.parametrize("message", [HELLO, report(1)], ids=["hello", "report"])
def test_a_node_that_names_a_gpu_twice_is_refused(message: m.Hello | m.Report) -> None:
    gpu = {"index": 0, "model": "", "healthy": True}
    forged = msgspec.json.encode({"v": 1, **msgspec.to_builtins(message), "gpus": [gpu, gpu]})

    with pytest.raises(RemoteProtocolError, match="a GPU is named twice"):
        decode_from_agent(forged)


@pytest.mark.parametrize("task_id", ["1", "1.", ".1", "1.x", "../1.0", "1.0\n", "a b.0"])
def test_a_task_s_name_can_be_a_file_s_name(task_id: str) -> None:
    with pytest.raises(LocalProtocolError):
        encode(start(task_id))


def test_a_close_reason_fits_into_a_close_frame() -> None:
    reason = close_reason(RemoteProtocolError("ü" * 200))

    assert len(reason.encode()) <= REASON_BYTES_MAX
    assert set(reason) == {"ü"}


def opened() -> tuple[AgentSide, ManagerSide]:
    agent, manager = AgentSide(), ManagerSide()
    manager.receive(agent.send(HELLO))
    agent.receive(manager.send(m.Welcome(generation=3)))
    return agent, manager


def test_hello_and_welcome_open_a_connection() -> None:
    agent, manager = opened()

    assert manager.hello == HELLO
    assert agent.is_open
    assert agent.generation == 3


def test_reports_are_acknowledged_once_they_were_sent() -> None:
    agent, manager = opened()

    assert manager.receive(agent.send(report(4))) == report(4)
    agent.receive(manager.send(m.Ack(seq=4)))

    assert agent.acked == 4
    with pytest.raises(RemoteProtocolError, match="ACK of report 5"):
        agent.receive(manager.send(m.Ack(seq=5)))


def test_an_agent_says_nothing_out_of_turn() -> None:
    agent = AgentSide()

    with pytest.raises(LocalProtocolError):
        agent.send(report(1))
    agent.send(HELLO)
    with pytest.raises(LocalProtocolError):
        agent.send(HELLO)
    with pytest.raises(LocalProtocolError):
        agent.send(report(1))


def test_a_manager_says_nothing_before_hello_and_welcome() -> None:
    manager = ManagerSide()

    with pytest.raises(LocalProtocolError):
        manager.send(m.Welcome(generation=1))
    manager.receive(encode(HELLO))
    with pytest.raises(LocalProtocolError):
        manager.send(start())
    manager.send(m.Welcome(generation=1))
    with pytest.raises(LocalProtocolError):
        manager.send(m.Welcome(generation=1))


def test_frames_out_of_turn_are_refused() -> None:
    agent, manager = AgentSide(), ManagerSide()

    with pytest.raises(RemoteProtocolError, match="REPORT before WELCOME"):
        manager.receive(encode(report(1)))
    with pytest.raises(RemoteProtocolError, match="WELCOME answers one HELLO"):
        agent.receive(encode(m.Welcome(generation=1)))
    agent.send(HELLO)
    with pytest.raises(RemoteProtocolError, match="START before WELCOME"):
        agent.receive(encode(start()))


def test_reports_that_do_not_grow_are_refused() -> None:
    agent, manager = opened()
    manager.receive(agent.send(report(2)))

    with pytest.raises(RemoteProtocolError, match="REPORT 2 after 2"):
        manager.receive(encode(report(2)))


def test_a_manager_of_an_older_generation_is_fenced_off() -> None:
    late = AgentSide(seen_generation=5)
    late.send(HELLO)

    with pytest.raises(RemoteProtocolError, match="generation 4 is over, this node obeys 5") as caught:
        late.receive(encode(m.Welcome(generation=4)))

    assert caught.value.code == CloseCode.FENCED


def test_a_command_of_an_older_generation_is_fenced_off() -> None:
    agent, manager = opened()

    with pytest.raises(RemoteProtocolError, match="generation 2 is over, this node obeys 3"):
        agent.receive(manager.send(start(generation=2)))


@given(st.lists(agent_messages | manager_messages, max_size=12))
def test_whatever_comes_in_whatever_order_is_read_or_refused(messages: list[m.Message]) -> None:
    agent, manager = AgentSide(), ManagerSide()
    agent.send(HELLO)

    for message in messages:
        for side in (agent, manager):
            with suppress(RemoteProtocolError):
                side.receive(encode(message))  # type: ignore[arg-type]
