"""The Open Inference Protocol: bodies of HTTP, and what both doors check of a request. PURE.

A body is JSON, or a JSON head with binary tensors behind it; the header Inference-Header-Content-Length has the head's
bytes then. Tensors are little-endian and row-major. The first axis of each is the batch: all inputs of a request have
the same number of rows. Whatever is wrong is an `InferenceError` with one line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from farside.agent.serving.model_file import NUMPY_NAMES, ModelFile, TensorSpec
from farside.errors import FarsideError

Array = NDArray[Any]

# Of a JSON head before binary tensors: names and shapes, no data.
HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 64 << 20
# A number of a tensor in JSON, such as -1.1920928955078125e-07 with what parts it from the next, at most.
_JSON_NUMBER_BYTES = 26
_NUMBERS = frozenset((bool, int, float))
_TENSORS_MAX = 64
_ID_BYTES_MAX = 1024
# A longer timeout is taken as this one, beyond any SLO.
_TIMEOUT_US_MAX = 1 << 53

DTYPES = MappingProxyType({name: np.dtype(known) for name, known in NUMPY_NAMES.items()})


class Kind(Enum):
    """What a request ended with: the status of HTTP, that of gRPC, and how it is counted."""

    MALFORMED = (400, "INVALID_ARGUMENT", "refused")
    UNAUTHENTICATED = (401, "UNAUTHENTICATED", "refused")
    UNKNOWN = (404, "NOT_FOUND", "refused")
    METHOD = (405, "UNIMPLEMENTED", "refused")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED", "refused")
    COMPRESSED = (415, "UNIMPLEMENTED", "refused")
    UNSUPPORTED = (501, "UNIMPLEMENTED", "refused")
    LATE = (504, "DEADLINE_EXCEEDED", "dropped")
    FULL = (503, "UNAVAILABLE", "rejected")
    RAISED = (500, "INTERNAL", "failed")
    DIED = (503, "UNAVAILABLE", "failed")

    @property
    def http(self) -> int:
        """Status of HTTP."""
        return self.value[0]

    @property
    def grpc(self) -> str:
        """Name of the status of gRPC."""
        return self.value[1]

    @property
    def counted(self) -> str:
        """Under which outcome it is counted; all but ``refused`` violate the SLO."""
        return self.value[2]


class InferenceError(FarsideError):
    """A request that gets no result; the client gets the message."""

    def __init__(self, kind: Kind, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


def malformed(message: str) -> InferenceError:
    """The error for a request that is not what it should be."""
    return InferenceError(Kind.MALFORMED, message)


def version_of(model: ModelFile) -> str:
    """Triton's version: the number of the file's folder, or 1."""
    folder = model.path.split("/")[-2:-1]
    return folder[0] if folder and folder[0].isascii() and folder[0].isdigit() else "1"


def model_named(models: Mapping[str, ModelFile], name: str, version: str = "") -> ModelFile:
    """A model by its name; an empty version is its only one.

    Raises:
        InferenceError: There is none of that name or version.
    """
    model = models.get(name)
    if model is None:
        raise InferenceError(Kind.UNKNOWN, f"no model {name!r:.100} is served")
    if version and version != version_of(model):
        raise InferenceError(Kind.UNKNOWN, f"{name} has no version {version!r:.40}; it has version {version_of(model)}")
    return model


def body_bytes_max(model: ModelFile) -> int:
    """The largest request: all rows in JSON, with as much as a head beside."""
    return min(BODY_BYTES_MAX, HEAD_BYTES_MAX + json_bytes(model.inputs, model.max_batch))


def json_bytes(specs: Iterable[TensorSpec], rows: int) -> int:
    """Bytes that ``rows`` rows of each of some tensors have in JSON at most."""
    return rows * sum(one.row_items for one in specs) * _JSON_NUMBER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """A request that is sound: its inputs in the model's order, and the outputs that it wants by their place.

    ``binary``: for each wanted output whether its bytes come behind the head. ``timeout_us``: 0 where none is given.
    """

    id: str
    rows: int
    inputs: tuple[Array, ...]
    outputs: tuple[int, ...]
    binary: tuple[bool, ...]
    timeout_us: int

    def answer_json_bytes(self, model: ModelFile) -> int:
        """Bytes that the numbers in the JSON of its answer have at most; by gRPC all is binary."""
        if False not in self.binary:
            return 0
        places = (place for place, is_binary in zip(self.outputs, self.binary, strict=True) if not is_binary)
        return json_bytes((model.outputs[place] for place in places), self.rows)


# ---- HTTP bodies


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] | None = None


_decoder = msgspec.json.Decoder(_Request)


def head_bytes(text: str | None, body: int) -> int | None:
    """Bytes of the JSON head by the header Inference-Header-Content-Length; None without it.

    Raises:
        InferenceError: It is no number, or beyond the body's ``body`` bytes.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > body:
        raise malformed(f"Inference-Header-Content-Length {text!r:.40} is not a number up to the body's {body} bytes")
    if int(text) > HEAD_BYTES_MAX:
        raise InferenceError(Kind.TOO_LARGE, f"the JSON head has {text} bytes; at most {HEAD_BYTES_MAX} are taken")
    return int(text)


def read_request(model: ModelFile, body: bytes | bytearray, head: int | None) -> InferRequest:
    """The request in a body.

    Args:
        model: The model that it is for.
        body: All of it; inputs are views into it.
        head: Bytes of the JSON head before binary tensors; None: the body is JSON.

    Raises:
        InferenceError: It is not a sound request of this model.
    """
    try:
        said = _decoder.decode(body if head is None else memoryview(body)[:head])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"the body is no inference request: {_line(error)}") from error
    places = _places(model, [one.name for one in said.inputs])
    arrays: list[Array | None] = [None] * len(places)
    rows, offset = 0, head if head is not None else len(body)
    for place, one in zip(places, said.inputs, strict=True):
        spec = model.inputs[place]
        rows = checked_rows(model, spec, one.shape, one.datatype, rows)
        size = _binary_size(spec, one.parameters)
        if size is None:
            arrays[place] = _from_json(spec, rows, one.data)
            continue
        if one.data is not None:
            raise malformed(f"input {spec.name}: has both data and binary_data_size; give one")
        if size > len(body) - offset:
            raise malformed(f"input {spec.name}: its {size} bytes are not there; the body ends before")
        arrays[place] = from_bytes(spec, rows, memoryview(body)[offset : offset + size])
        offset += size
    if offset != len(body):
        raise malformed(f"{len(body) - offset} bytes follow the last tensor; binary_data_size of the inputs is wrong")
    timeout_us, is_binary = read_parameters(said.parameters)
    wanted, binary = _wanted(model, said.outputs, is_binary=is_binary)
    request = InferRequest(
        id=checked_id(said.id), rows=rows, inputs=tuple(one for one in arrays if one is not None), outputs=wanted,
        binary=binary, timeout_us=timeout_us,
    )  # fmt: skip
    if (size := request.answer_json_bytes(model)) > BODY_BYTES_MAX:
        line = f"the outputs would have up to {size} bytes in JSON; at most {BODY_BYTES_MAX} are written"
        raise InferenceError(Kind.MALFORMED, line, hint="ask for them as bytes, by binary_data_output")
    return request


def written_answer(
    model: ModelFile, request: InferRequest, arrays: Sequence[Array] | Mapping[int, Array]
) -> tuple[bytes, int | None]:
    """The body of an answer, and the bytes of its head; None where it is JSON alone.

    Args:
        model: The model.
        request: What was asked.
        arrays: Outputs by their place in the model, with the request's rows; views are not kept.
    """
    outputs: list[dict[str, Any]] = []
    tail: list[memoryview] = []
    for place, is_binary in zip(request.outputs, request.binary, strict=True):
        spec, array = model.outputs[place], arrays[place]
        told: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": list(array.shape)}
        if is_binary:
            told["parameters"] = {"binary_data_size": array.nbytes}
            tail.append(np.ascontiguousarray(array).data)  # copied once, where all is joined
        else:
            told["data"] = array.ravel().tolist()
        outputs.append(told)
    answer: dict[str, Any] = {"model_name": model.name, "model_version": version_of(model)}
    if request.id:
        answer["id"] = request.id
    answer["outputs"] = outputs
    head = msgspec.json.encode(answer)
    return (b"".join((head, *tail)), len(head)) if tail else (head, None)


def written_error(error: InferenceError) -> bytes:
    """The body of an error."""
    return msgspec.json.encode({"error": _line(error)})


# ---- what both doors check


def checked_rows(model: ModelFile, spec: TensorSpec, shape: Sequence[int], datatype: str, rows: int) -> int:
    """Rows of an input; ``rows`` are those of the inputs before it, 0 for the first.

    Raises:
        InferenceError: Another datatype or shape, more rows than a batch may have, or others than before.
    """
    if datatype != spec.datatype:
        why = ", which is not served: strings have no fixed size" if datatype == "BYTES" else ""
        raise malformed(f"input {spec.name}: has datatype {datatype!r:.20}{why}; the model takes {spec.datatype}")
    if len(shape) != len(spec.shape) + 1 or tuple(shape[1:]) != spec.shape:
        raise malformed(
            f"input {spec.name}: has shape {_shown(shape)}; the model takes {_shown(('rows', *spec.shape))}"
        )
    if not 1 <= shape[0] <= model.max_batch:
        raise malformed(f"input {spec.name}: has {shape[0]} rows; {model.name} takes 1 to {model.max_batch}")
    if rows and shape[0] != rows:
        raise malformed(f"input {spec.name}: has {shape[0]} rows, the input before it {rows}; give all the same")
    return shape[0]


def from_bytes(spec: TensorSpec, rows: int, data: bytes | memoryview) -> Array:
    """An input of ``rows`` rows over its bytes, without a copy.

    Raises:
        InferenceError: There are more or fewer, or one of BOOL is neither 0 nor 1.
    """
    expected = rows * spec.row_bytes
    if len(data) != expected:
        raise malformed(f"input {spec.name}: has {len(data)} bytes; its shape and datatype make {expected}")
    if spec.datatype == "BOOL" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise malformed(f"input {spec.name}: a byte of BOOL is neither 0 nor 1")
    return np.frombuffer(data, DTYPES[spec.datatype]).reshape(rows, *spec.shape)


def from_numbers(spec: TensorSpec, rows: int, numbers: Array) -> Array:
    """An input of ``rows`` rows from numbers that came as text or as varints.

    Raises:
        InferenceError: Their number or kind is another, or one is beyond the datatype.
    """
    dtype = DTYPES[spec.datatype]
    expected = rows * spec.row_items
    if numbers.size != expected:
        raise malformed(f"input {spec.name}: has {numbers.size} numbers; its shape makes {expected}")
    if dtype == np.uint64 and numbers.dtype == object:
        if not all(type(one) is int and 0 <= one < 1 << 64 for one in numbers.flat):
            raise malformed(f"input {spec.name}: a number is no UINT64")
        return numbers.astype(dtype).reshape(rows, *spec.shape)
    if numbers.dtype.kind not in {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}[dtype.kind]:
        raise malformed(f"input {spec.name}: its data are no {spec.datatype}")
    if dtype.kind in "iu" and numbers.size:
        bounds = np.iinfo(dtype)
        if int(numbers.min()) < bounds.min or int(numbers.max()) > bounds.max:
            raise malformed(f"input {spec.name}: a number is beyond {spec.datatype}")
    with np.errstate(over="ignore"):
        made = numbers.astype(dtype).reshape(rows, *spec.shape)
    if dtype.kind == "f" and np.isinf(made).any() and not np.isinf(numbers.astype(float)).any():
        raise malformed(f"input {spec.name}: a number is beyond {spec.datatype}")
    return made


def read_parameters(parameters: Mapping[str, Any]) -> tuple[int, bool]:
    """The timeout in microseconds (0: none) and whether outputs are wanted as bytes, from a request's parameters.

    Raises:
        InferenceError: A parameter is not known, or asks for what is not served.
    """
    timeout_us, is_binary = 0, False
    for name, value in parameters.items():
        if name == "timeout":
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise malformed(f"timeout {value!r:.40} is not a whole number of microseconds from 1 on")
            timeout_us = min(value, _TIMEOUT_US_MAX)
        elif name == "binary_data_output" and isinstance(value, bool):
            is_binary = value
        elif name in ("priority", "sequence_id", "sequence_start", "sequence_end") and not value:
            pass  # what clients send where they want none
        elif name == "triton_enable_empty_final_response" and isinstance(value, bool):
            pass  # Triton's client in C++ sends it always; it says how streams end, and those are not served
        else:
            raise malformed(f"parameter {name!r:.60} is not served; known are timeout and binary_data_output")
    return timeout_us, is_binary


def checked_id(text: str) -> str:
    """A request's own id, which comes back.

    Raises:
        InferenceError: It is too long.
    """
    if len(text) > _ID_BYTES_MAX:
        raise malformed(f"id has {len(text)} characters; at most {_ID_BYTES_MAX} are taken")
    return text


def input_places(model: ModelFile, names: Sequence[str]) -> list[int]:
    """The place in the model of each named input.

    Raises:
        InferenceError: One is unknown, missing or there twice.
    """
    return _places(model, names)


def output_places(model: ModelFile, names: Iterable[str]) -> tuple[int, ...]:
    """The place in the model of each named output; all, where none is named.

    Raises:
        InferenceError: One is unknown or there twice.
    """
    known = {spec.name: place for place, spec in enumerate(model.outputs)}
    found: list[int] = []
    for name in names:
        if name not in known:
            raise malformed(f"output {name!r:.60}: {model.name} has {', '.join(known)}")
        if known[name] in found:
            raise malformed(f"output {name}: is wanted twice")
        found.append(known[name])
    return tuple(found) or tuple(known.values())


def _places(model: ModelFile, names: Sequence[str]) -> list[int]:
    known = {spec.name: place for place, spec in enumerate(model.inputs)}
    if len(names) > _TENSORS_MAX:
        raise malformed(f"{len(names)} inputs; {model.name} has {len(known)}")
    found: list[int] = []
    for name in names:
        if name not in known:
            raise malformed(f"input {name!r:.60}: {model.name} has {', '.join(known)}")
        if known[name] in found:
            raise malformed(f"input {name}: is there twice")
        found.append(known[name])
    if len(found) < len(known):
        missing = next(name for name, place in known.items() if place not in found)
        raise malformed(f"input {missing}: is missing")
    return found


def _wanted(
    model: ModelFile, outputs: Sequence[_Output] | None, *, is_binary: bool
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    places = output_places(model, [one.name for one in (outputs or ())[: _TENSORS_MAX + 1]])
    binary = [is_binary] * len(places)
    for at, one in enumerate(outputs or ()):
        for name, value in one.parameters.items():
            if name == "binary_data" and isinstance(value, bool):
                binary[at] = value
            elif name != "classification" or value:
                raise malformed(f"output {one.name}: parameter {name!r:.60} is not served; known is binary_data")
    return places, tuple(binary)


def _binary_size(spec: TensorSpec, parameters: Mapping[str, Any]) -> int | None:
    size = None
    for name, value in parameters.items():
        if name != "binary_data_size":
            raise malformed(f"input {spec.name}: parameter {name!r:.60} is not served; known is binary_data_size")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise malformed(f"input {spec.name}: binary_data_size {value!r:.40} is not a number of bytes")
        size = value
    return size


def _from_json(spec: TensorSpec, rows: int, data: Any) -> Array:
    if not isinstance(data, list):
        raise malformed(f"input {spec.name}: has neither data, a list, nor binary_data_size")
    flat = _flattened(spec, data, rows * spec.row_items)
    # Numbers from 2^63 on beside smaller ones would become floats.
    numbers = np.asarray(flat, object) if spec.datatype == "UINT64" else np.asarray(flat)
    return from_numbers(spec, rows, numbers)


def _flattened(spec: TensorSpec, data: list[Any], expected: int) -> list[Any]:
    """The numbers in lists of lists, level by level, before numpy sees them.

    numpy would make of strings an array with room for the longest in each place, and of a list whatever its length.

    Raises:
        InferenceError: The lists of a level are not of one length, there are too many items, or some are no numbers.
    """
    level: list[Any] = data
    while True:
        if len(level) > expected:
            raise malformed(f"input {spec.name}: has {len(level)} items; its shape makes {expected}")
        kinds = set(map(type, level))
        if kinds <= _NUMBERS:
            return level
        if list not in kinds:
            raise malformed(f"input {spec.name}: its data are no {spec.datatype}")
        if len(kinds) > 1 or len(set(map(len, level))) > 1:
            raise malformed(f"input {spec.name}: its data are no tensor")
        level = list(chain.from_iterable(level))


def _shown(shape: Iterable[object]) -> str:
    return f"[{','.join(str(one) for one in shape)}]"[:200]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
