"""What goes over TCP between a front and a worker: cut anywhere, forged, or made of random bytes."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.agent.serving.life import PREPARE_S_MAX
from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.agent.serving.partition.policy import Device
from farside.agent.serving.wire import HEAD_BYTES, Frame, Kind, Open, Proven, Wire, opened, rows_bytes
from farside.errors import FarsideError, LocalProtocolError, PeerError, RemoteProtocolError
from farside.proof import CODE_BYTES, Side

KEY = b"k" * 32
MODEL = ModelFile(
    name="net", path="/models/net.onnx", framework="onnxruntime", max_batch=4,
    inputs=(TensorSpec("x", "FP32", (3,)),), outputs=(TensorSpec("y", "INT8", (5,)),),
)  # fmt: skip
WANTED = Open(driver="cpu", device=Device(cores=(0,)), part_pct=40, models=(MODEL, MODEL), p99_s={"net": 0.1})
OPEN = Frame(Kind.OPEN, body=msgspec.msgpack.encode(WANTED))


def ends(front_key: bytes = KEY, worker_key: bytes = KEY) -> tuple[Wire, Wire]:
    return Wire(Side.FRONT, (front_key,), b"f" * 32), Wire(Side.WORKER, (worker_key,), b"w" * 32)


def carried(sender: Wire, receiver: Wire) -> list[Proven | Frame]:
    return list(receiver.receive(sender.data_to_send()))


def proven() -> tuple[Wire, Wire]:
    """Two ends with an executor open."""
    front, worker = ends()
    carried(front, worker)
    assert carried(worker, front) == [Proven()]
    assert carried(front, worker) == [Proven()]
    front.send(OPEN)
    assert carried(front, worker) == [OPEN]
    return front, worker


def run(batch: int, rows: int = 2, slot: int = 0, model: int = 0) -> Frame:
    return Frame(Kind.RUN, batch, model, rows, slot, bytes(range(rows_bytes(MODEL, rows, outputs=False))))


def done(asked: Frame) -> Frame:
    size = rows_bytes(MODEL, asked.rows, outputs=True)
    return asked._replace(kind=Kind.DONE, body=b"\x07" * size, started_ns=5, ended_ns=9)


def test_an_executor_is_opened_run_resized_and_closed() -> None:
    front, worker = proven()
    worker.send(Frame(Kind.OPENED))
    for asked in (run(1), run(2, 4, 1, 1)):
        front.send(asked)
        assert carried(front, worker) == [asked]
    worker.send(done(run(1)))
    raised = Frame(Kind.RAISED, 2, 1, 4, 1, b"it raised", 10, 11)
    worker.send(raised)
    front.send(Frame(Kind.RESIZE, rows=60))
    front.send(Frame(Kind.CLOSE))

    assert carried(worker, front) == [Frame(Kind.OPENED), done(run(1)), raised]
    assert [frame.kind for frame in carried(front, worker) if isinstance(frame, Frame)] == [Kind.RESIZE, Kind.CLOSE]
    assert opened(OPEN.body) == WANTED


@given(st.lists(st.integers(1, 40), max_size=60))
def test_a_conversation_that_is_cut_anywhere_arrives_as_it_was_sent(cuts: Sequence[int]) -> None:
    front, worker = ends()
    found: dict[Side, list[Proven | Frame]] = {Side.FRONT: [], Side.WORKER: []}
    todo = [OPEN, run(1), run(2, 1, 1)]
    lengths = iter(cuts)

    def carry(sender: Wire, receiver: Wire, side: Side) -> None:
        data = sender.data_to_send()
        while data:
            size = min(len(data), next(lengths, 1 << 20))
            found[side] += receiver.receive(data[:size])
            data = data[size:]

    for _ in range(3):
        carry(front, worker, Side.WORKER)
        carry(worker, front, Side.FRONT)
    for frame in todo:
        front.send(frame)
    carry(front, worker, Side.WORKER)
    worker.send(done(run(1)))
    carry(worker, front, Side.FRONT)

    assert found == {Side.FRONT: [Proven(), done(run(1))], Side.WORKER: [Proven(), *todo]}


def test_an_end_says_how_much_it_wants_to_read_and_never_more_than_it_may_keep() -> None:
    front, worker = ends()
    reads = []
    for sender, receiver in ((front, worker), (worker, front), (front, worker)):
        data = sender.data_to_send()
        reads.append((receiver.needed, len(data)))
        list(receiver.receive(data))
    front.send(OPEN)
    data = front.data_to_send()
    reads.append((worker.needed, HEAD_BYTES + CODE_BYTES))
    list(worker.receive(data[: worker.needed]))
    reads.append((worker.needed, len(OPEN.body)))

    assert all(wanted == there for wanted, there in reads)


@pytest.mark.parametrize("to_worker", [True, False])
@settings(max_examples=200)
@given(data=st.lists(st.binary(max_size=200), max_size=5))
def test_random_bytes_are_refused_and_nothing_else_happens(to_worker: bool, data: list[bytes]) -> None:
    front, worker = ends()
    end = worker if to_worker else front
    try:
        for part in data:
            assert list(end.receive(part)) == []
    except (PeerError, RemoteProtocolError):
        assert list(end.receive(b"anything")) == []
    assert not end.is_proven


@settings(max_examples=200)
@given(st.integers(0, 2**16), st.integers(1, 255))
def test_a_changed_byte_of_a_head_a_code_or_a_control_frame_is_noticed(at: int, change: int) -> None:
    front, worker = proven()
    front.send(Frame(Kind.RESIZE, rows=50))
    front.send(run(3))
    data = bytearray(front.data_to_send())
    coded = 2 * (HEAD_BYTES + CODE_BYTES)
    data[at % coded] ^= change

    with pytest.raises(RemoteProtocolError):  # also where a length grew: then what it lacks comes as the next frame
        list(worker.receive(bytes(data) + bytes(4096)))


def test_a_frame_that_is_repeated_or_turned_round_is_refused() -> None:
    front, worker = proven()
    front.send(Frame(Kind.RESIZE, rows=50))
    data = front.data_to_send()
    assert len(list(worker.receive(data))) == 1
    with pytest.raises(RemoteProtocolError, match="wrong code"):
        list(worker.receive(data))
    with pytest.raises(RemoteProtocolError, match="from the wrong end"):
        list(front.receive(data))


def test_another_key_is_refused_at_either_end_without_a_proof() -> None:
    front, worker = ends(front_key=b"other" * 8)
    with pytest.raises(PeerError, match="another deployment's key"):
        carried(front, worker)
    assert worker.data_to_send() == b""

    front, _ = ends()
    with pytest.raises(PeerError, match="a worker does not have the deployment's key"):
        list(front.receive(bytes(64)))
    front, worker = ends()
    carried(front, worker)
    with pytest.raises(PeerError, match="a front does not have the deployment's key"):
        list(worker.receive(bytes(32)))


def test_a_worker_that_is_shown_its_own_number_refuses() -> None:
    worker = Wire(Side.WORKER, (KEY,), b"w" * 32)
    with pytest.raises(RemoteProtocolError, match="our own number"):
        carried(Wire(Side.FRONT, (KEY,), b"w" * 32), worker)


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ([run(1), run(2, slot=1), run(3, model=1)], "batch 3 is more than may be in flight"),
        ([run(1), run(1, slot=1)], "batch 1 is more than may be in flight"),
        ([run(1), run(2)], "slot 0, which is not free"),
        ([run(1, slot=2)], "slot 2, which is not free"),
        ([run(1, model=2)], "model 2 of 2"),
        ([run(1, rows=5)], "5 rows of at most 4"),
        ([run(1)._replace(body=b"short")], "5 bytes of tensors instead of 24"),
        ([OPEN], "a second OPEN"),
        ([Frame(Kind.RESIZE, body=bytes(901))], "901 bytes, not 0 to 900"),
    ],
)
def test_what_the_protocol_does_not_allow_is_neither_sent_nor_taken(frames: list[Frame], line: str) -> None:
    front, worker = proven()
    *before, last = frames
    for frame in before:
        front.send(frame)
    assert len(carried(front, worker)) == len(before)
    with pytest.raises(LocalProtocolError, match=line):
        front.send(last)
    unchecked = Wire.__new__(Wire)
    for name, value in vars(front).items():
        setattr(unchecked, name, value)
    unchecked._problem = lambda frame, size: ""  # type: ignore[method-assign]
    unchecked._note = lambda frame: None  # type: ignore[method-assign]
    unchecked.send(last)

    with pytest.raises(RemoteProtocolError, match=line):
        list(worker.receive(unchecked.data_to_send()))


def test_an_answer_to_what_was_not_asked_is_refused() -> None:
    front, worker = proven()
    front.send(run(1))
    carried(front, worker)

    with pytest.raises(LocalProtocolError, match="batch 2, which does not run"):
        worker.send(done(run(2)))
    with pytest.raises(LocalProtocolError, match="is the other end's to say"):
        worker.send(run(5))


def test_an_open_of_a_front_of_another_version_is_read() -> None:
    said = msgspec.msgpack.decode(OPEN.body, type=dict[str, object])
    later, before = {**said, "of_later": 1}, {name: value for name, value in said.items() if name != "runtimes"}

    for words in (later, before):
        assert opened(msgspec.msgpack.encode(words)) == WANTED


@given(st.binary(max_size=300))
def test_an_open_that_makes_no_sense_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        opened(body)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_batch": 0},
        {"max_batch": 10**9},
        {"inputs": (TensorSpec("x", "BYTES", (3,)),)},
        {"inputs": (TensorSpec("x", "FP32", (-3, -4)),)},
        {"inputs": (TensorSpec("x", "FP32", (1 << 40,)),)},
    ],
)
def test_an_open_with_a_model_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    model = msgspec.structs.replace(MODEL, **changes)
    with pytest.raises(RemoteProtocolError, match="a model net whose"):
        opened(msgspec.msgpack.encode(msgspec.structs.replace(WANTED, models=(model,))))


@pytest.mark.parametrize("prepare_s", [0.0, PREPARE_S_MAX + 1.0, float("inf")])
def test_an_open_with_a_time_out_of_bounds_is_refused(prepare_s: float) -> None:
    with pytest.raises(RemoteProtocolError, match="prepare_s"):
        opened(msgspec.msgpack.encode(msgspec.structs.replace(WANTED, prepare_s=prepare_s)))


def test_nothing_is_sent_before_the_proof() -> None:
    front, _ = ends()
    with pytest.raises(FarsideError, match="a OPEN before the proof"):
        front.send(OPEN)
