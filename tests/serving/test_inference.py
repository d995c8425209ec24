"""The Open Inference Protocol without sockets: what is taken, what is answered, what is refused with which line."""

import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.serve.inference import (
    BODY_BYTES_MAX,
    InferenceError,
    Kind,
    body_bytes_max,
    from_bytes,
    head_bytes,
    read_request,
    written_answer,
    written_error,
)
from tests.serving.front import model_file

MODEL = ModelFile(
    name="two", path="/m/two/3/model.onnx", framework="onnxruntime", max_batch=4,
    inputs=(TensorSpec("a", "FP32", (2,)), TensorSpec("b", "INT8", ())),
    outputs=(TensorSpec("x", "FP32", (2,)), TensorSpec("y", "BOOL", ())),
)  # fmt: skip
A = {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}
B = {"name": "b", "shape": [1], "datatype": "INT8", "data": [7]}


def encoded(**request: object) -> bytes:
    return msgspec.json.encode({"inputs": [A, B], **request})


def binary(*parts: bytes, sizes: tuple[int, ...] = (8, 1)) -> tuple[bytes, int]:
    inputs = [
        {"name": "b", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": sizes[1]}},
        {"name": "a", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": sizes[0]}},
    ]
    head = msgspec.json.encode({"inputs": inputs, "parameters": {"binary_data_output": True}})
    return b"".join((head, *parts)), len(head)


def test_numbers_in_json_become_arrays_in_the_models_order() -> None:
    request = read_request(MODEL, msgspec.json.encode({"id": "q", "inputs": [B, A]}), None)

    assert request.id == "q"
    assert request.rows == 1
    assert request.outputs == (0, 1)
    assert [one.tolist() for one in request.inputs] == [[[1.5, -2.0]], [7]]


@pytest.mark.parametrize("data", [[1.5, -2], [[1.5, -2]], [[1.5], [-2]], [[[1.5, -2]]]])
def test_numbers_may_be_in_lists_of_lists(data: object) -> None:
    request = read_request(MODEL, msgspec.json.encode({"inputs": [{**A, "data": data}, B]}), None)

    assert request.inputs[0].tolist() == [[1.5, -2.0]]


def test_strings_in_place_of_numbers_cost_no_memory() -> None:
    """numpy would make room for the longest of them in the place of each: 128 MiB here."""
    model = model_file(max_batch=4, shape=(1000,))
    told = {"name": "input", "shape": [4, 1000], "datatype": "FP32"}
    body = msgspec.json.encode({"inputs": [{**told, "data": [""] * 3999 + ["x" * 8000]}]})
    tracemalloc.start()
    try:
        with pytest.raises(InferenceError, match="its data are no FP32"):
            read_request(model, body, None)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1 << 20


def test_binary_tensors_are_read_in_the_order_of_the_head() -> None:
    body, head = binary(np.int8(7).tobytes(), np.array([1.5, -2], "<f4").tobytes())

    request = read_request(MODEL, body, head)

    assert [one.tolist() for one in request.inputs] == [[[1.5, -2.0]], [7]]
    assert request.binary == (True, True)


def test_an_answer_has_the_id_and_each_output_in_the_form_that_was_asked_for() -> None:
    wanted = [{"name": "y", "parameters": {"binary_data": True}}, {"name": "x"}]
    request = read_request(MODEL, encoded(id="q", outputs=wanted), None)

    body, head = written_answer(MODEL, request, [np.array([[1.0, 2.0]], "f4"), np.array([True])])

    assert head is not None
    assert body[head:] == b"\x01"
    assert msgspec.json.decode(body[:head]) == {
        "model_name": "two", "model_version": "3", "id": "q",
        "outputs": [
            {"name": "y", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}},
            {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"", "is no inference request"),
        (b"[" * 5000, "is no inference request"),
        (b'{"inputs": 3}', "is no inference request"),
        (msgspec.json.encode({"inputs": [A]}), "input b: is missing"),
        (msgspec.json.encode({"inputs": [A, A]}), "input a: is there twice"),
        (msgspec.json.encode({"inputs": [A, {**B, "name": "c"}]}), "input 'c': two has a, b"),
        (msgspec.json.encode({"inputs": [{**A, "datatype": "FP64"}, B]}), "the model takes FP32"),
        (msgspec.json.encode({"inputs": [{**A, "datatype": "BYTES"}, B]}), "strings have no fixed size"),
        (msgspec.json.encode({"inputs": [{**A, "shape": [2]}, B]}), "the model takes [rows,2]"),
        (msgspec.json.encode({"inputs": [{**A, "shape": [5, 2]}, B]}), "takes 1 to 4"),
        (msgspec.json.encode({"inputs": [{**A, "shape": [0, 2]}, B]}), "takes 1 to 4"),
        (msgspec.json.encode({"inputs": [{**A, "shape": [2, 2], "data": [1, 2, 3, 4]}, B]}), "give all the same"),
        (msgspec.json.encode({"inputs": [{**A, "data": [1]}, B]}), "has 1 numbers; its shape makes 2"),
        (msgspec.json.encode({"inputs": [{**A, "data": ["1", "2"]}, B]}), "its data are no FP32"),
        (msgspec.json.encode({"inputs": [{**A, "data": [[1], [2, 3]]}, B]}), "its data are no tensor"),
        (msgspec.json.encode({"inputs": [{**A, "data": [1, [2]]}, B]}), "its data are no tensor"),
        (msgspec.json.encode({"inputs": [{**A, "data": [[1, None]]}, B]}), "its data are no FP32"),
        (msgspec.json.encode({"inputs": [{**A, "data": [[[1, 2]], [[3, 4]]]}, B]}), "has 4 items; its shape makes 2"),
        (msgspec.json.encode({"inputs": [{**A, "data": [[], []]}, B]}), "has 0 numbers; its shape makes 2"),
        (msgspec.json.encode({"inputs": [{**A, "data": None}, B]}), "has neither data"),
        (msgspec.json.encode({"inputs": [{**A, "data": [1e300, 0]}, B]}), "a number is beyond FP32"),
        (msgspec.json.encode({"inputs": [A, {**B, "data": [300]}]}), "a number is beyond INT8"),
        (msgspec.json.encode({"inputs": [A, {**B, "data": [1.5]}]}), "its data are no INT8"),
        (encoded(outputs=[{"name": "z"}]), "output 'z': two has x, y"),
        (encoded(outputs=[{"name": "x"}, {"name": "x"}]), "output x: is wanted twice"),
        (encoded(outputs=[{"name": "x", "parameters": {"classification": 3}}]), "'classification' is not served"),
        (encoded(parameters={"timeout": 0}), "timeout 0 is not a whole number of microseconds"),
        (encoded(parameters={"timeout": True}), "timeout True is not"),
        (encoded(parameters={"sequence_id": 4}), "parameter 'sequence_id' is not served"),
        (encoded(id="x" * 2000), "at most 1024"),
    ],
)  # fmt: skip
def test_what_is_no_sound_request_is_refused_in_one_line(body: bytes, line: str) -> None:
    with pytest.raises(InferenceError) as raised:
        read_request(MODEL, body, None)

    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.kind is Kind.MALFORMED
    assert list(msgspec.json.decode(written_error(raised.value))) == ["error"]


@pytest.mark.parametrize(
    ("parts", "sizes", "line"),
    [
        ((b"\x07",), (8, 1), "its 8 bytes are not there"),
        ((b"\x07", bytes(8), b"x"), (8, 1), "1 bytes follow the last tensor"),
        ((b"\x07", bytes(4)), (4, 1), "has 4 bytes; its shape and datatype make 8"),
        ((b"\x07", bytes(8)), (-8, 1), "binary_data_size -8 is not a number of bytes"),
    ],
)
def test_lengths_that_do_not_add_up_are_refused(parts: tuple[bytes, ...], sizes: tuple[int, ...], line: str) -> None:
    body, head = binary(*parts, sizes=sizes)

    with pytest.raises(InferenceError, match=line):
        read_request(MODEL, body, head)


def test_a_byte_of_bool_that_is_neither_0_nor_1_is_refused_as_in_json() -> None:
    spec = TensorSpec("a", "BOOL", (3,))
    assert from_bytes(spec, 1, b"\x00\x01\x01").tolist() == [[False, True, True]]
    for byte in (2, 7, 255):
        with pytest.raises(InferenceError, match="input a: a byte of BOOL is neither 0 nor 1"):
            from_bytes(spec, 1, bytes((0, byte, 1)))


def test_a_head_beyond_the_body_or_of_a_megabyte_is_refused() -> None:
    for text, body, kind in (
        ("9", 8, Kind.MALFORMED),
        ("-1", 8, Kind.MALFORMED),
        ("1000000", 2_000_000, Kind.TOO_LARGE),
    ):
        with pytest.raises(InferenceError) as raised:
            head_bytes(text, body)
        assert raised.value.kind is kind
    assert head_bytes(None, 8) is None
    assert head_bytes("8", 8) == 8


def test_outputs_that_are_too_large_for_json_are_refused_with_what_to_ask_for() -> None:
    model = ModelFile(
        name="mask", path="/m/mask/1/model.onnx", framework="onnxruntime", max_batch=4, inputs=MODEL.inputs,
        outputs=(TensorSpec("x", "FP32", (3, 1000, 1000)), TensorSpec("y", "FP32", (2,))),
    )  # fmt: skip
    with pytest.raises(InferenceError, match="by binary_data_output") as raised:
        read_request(model, encoded(), None)
    assert raised.value.kind is Kind.MALFORMED
    assert read_request(model, encoded(parameters={"binary_data_output": True}), None).answer_json_bytes(model) == 0
    assert read_request(model, encoded(outputs=[{"name": "y"}]), None).outputs == (1,)


def test_a_timeout_asks_for_less_than_the_slo() -> None:
    assert read_request(MODEL, encoded(parameters={"timeout": 5000}), None).timeout_us == 5000
    for long_us in (1 << 53, 1 << 63, (1 << 64) - 1):
        assert read_request(MODEL, encoded(parameters={"timeout": long_us}), None).timeout_us == 1 << 53


def test_what_clients_say_where_they_want_nothing_is_passed_over() -> None:
    """Triton's client in C++ always says how a stream is to end; answers are never streams here."""
    for said in ({"priority": 0, "sequence_id": 0}, {"triton_enable_empty_final_response": True}):
        assert read_request(MODEL, encoded(parameters=said), None).timeout_us == 0


def test_the_largest_request_is_bounded_by_the_model_and_by_64_mib() -> None:
    assert body_bytes_max(model_file(max_batch=1, shape=(1,))) < 100_000
    assert body_bytes_max(model_file(max_batch=1024, shape=(3, 1000, 1000))) == BODY_BYTES_MAX


@given(
    rows=st.integers(1, 4),
    datatype=st.sampled_from(["BOOL", "INT8", "UINT16", "INT64", "UINT64", "FP16", "FP32", "FP64"]),
    data=st.data(),
)
def test_what_is_written_is_read_again_by_either_form(rows: int, datatype: str, data: st.DataObject) -> None:
    model = model_file(max_batch=4, shape=(2, 1), datatype=datatype)
    raw = data.draw(st.binary(min_size=rows * model.inputs[0].row_bytes, max_size=rows * model.inputs[0].row_bytes))
    told = {"name": "input", "shape": [rows, 2, 1], "datatype": datatype}
    if datatype == "BOOL":
        raw = bytes(one & 1 for one in raw)
    head = msgspec.json.encode({"inputs": [{**told, "parameters": {"binary_data_size": len(raw)}}]})

    request = read_request(model, head + raw, len(head))

    assert request.inputs[0].tobytes() == raw
    answer, _ = written_answer(model, request, request.inputs)
    numbers = msgspec.json.decode(answer)["outputs"][0]["data"]
    if None not in numbers:  # JSON has neither infinity nor NaN
        again = read_request(model, msgspec.json.encode({"inputs": [{**told, "data": numbers}]}), None)
        assert np.array_equal(again.inputs[0], request.inputs[0])


@given(body=st.binary(max_size=200), head=st.integers(0, 250))
def test_random_bytes_never_crash(body: bytes, head: int) -> None:
    for given_head in (None, min(head, len(body))):
        try:
            read_request(MODEL, body, given_head)
        except InferenceError:
            pass


@given(at=st.integers(0, 400), byte=st.integers(0, 255), cut=st.integers(0, 400))
def test_a_damaged_request_is_refused_or_sound(at: int, byte: int, cut: int) -> None:
    body, head = binary(b"\x07", bytes(8))
    damaged = bytearray(body)
    damaged[at % len(body)] = byte
    del damaged[len(body) - cut % 20 :]
    try:
        request = read_request(MODEL, bytes(damaged), min(head, len(damaged)))
    except InferenceError:
        return
    assert [one.shape for one in request.inputs] == [(1, 2), (1,)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(shape=JSON, data=JSON, parameters=JSON, outputs=JSON)
def test_json_of_any_shape_never_crashes(shape: object, data: object, parameters: object, outputs: object) -> None:
    one = {**A, "shape": shape, "data": data}
    for request in (
        {"inputs": [one, B], "parameters": parameters},
        {"inputs": [{**A, "parameters": parameters}, B], "outputs": outputs},
        {"inputs": [{**A, "data": data}, B]},
    ):
        try:
            read_request(MODEL, msgspec.json.encode(request), None)
        except InferenceError:
            pass
