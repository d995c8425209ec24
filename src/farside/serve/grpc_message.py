"""The Open Inference Protocol's messages of gRPC: a request out of one, an answer into one.

The messages are those that tritonclient brings, so that there is one definition of the protocol. Nothing here waits or
sends.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.serve.inference import (
    Array,
    InferRequest,
    checked_id,
    checked_rows,
    from_bytes,
    from_numbers,
    input_places,
    malformed,
    output_places,
    read_parameters,
    version_of,
)

# Its classes are made when it is imported, so no checker of types knows them.
service_pb2: Any = import_module("tritonclient.grpc.service_pb2")

# Which field of InferTensorContents has a datatype's numbers; FP16 has none, and comes as bytes.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


def read_message(model: ModelFile, message: Any) -> InferRequest:
    """The request in a ModelInferRequest.

    Raises:
        InferenceError: It is not a sound request of this model.
    """
    places = input_places(model, [one.name for one in message.inputs])
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise malformed(f"{len(raw)} raw_input_contents for {len(message.inputs)} inputs; give one for each")
    arrays: list[Array | None] = [None] * len(places)
    rows = 0
    for at, (place, one) in enumerate(zip(places, message.inputs, strict=True)):
        spec = model.inputs[place]
        rows = checked_rows(model, spec, one.shape, one.datatype, rows)
        _no_parameters(f"input {spec.name}", one.parameters)
        if raw and one.HasField("contents"):
            raise malformed(f"input {spec.name}: has contents beside raw_input_contents; give one of them")
        arrays[place] = from_bytes(spec, rows, raw[at]) if raw else _from_contents(spec, rows, one.contents)
    for output in message.outputs:
        _no_parameters(f"output {output.name:.60}", output.parameters)
    timeout_us, _ = read_parameters({name: _value(one) for name, one in message.parameters.items()})
    wanted = output_places(model, [one.name for one in message.outputs])
    return InferRequest(
        id=checked_id(message.id), rows=rows, inputs=tuple(one for one in arrays if one is not None), outputs=wanted,
        binary=(True,) * len(wanted), timeout_us=timeout_us,
    )  # fmt: skip


def written_message(model: ModelFile, request: InferRequest, arrays: Sequence[Array]) -> bytes:
    """The ModelInferResponse as bytes; ``arrays`` as for `inference.written_answer`."""
    response = service_pb2.ModelInferResponse(model_name=model.name, model_version=version_of(model), id=request.id)
    for place in request.outputs:
        spec, array = model.outputs[place], arrays[place]
        response.outputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
        response.raw_output_contents.append(array.tobytes())
    return bytes(response.SerializeToString())


def told(value: dict[str, Any], message: Message) -> Message:
    """A description (description.py) as a message whose fields have the same names."""
    ParseDict(value, message)
    return message


def _from_contents(spec: TensorSpec, rows: int, contents: Any) -> Array:
    field = _CONTENTS.get(spec.datatype)
    if field is None:
        raise malformed(f"input {spec.name}: {spec.datatype} comes by raw_input_contents alone")
    for other, _ in contents.ListFields():
        if other.name != field:
            raise malformed(f"input {spec.name}: its data are in {other.name}; {spec.datatype} is in {field}")
    numbers = getattr(contents, field)
    if len(numbers) != rows * spec.row_items:
        raise malformed(f"input {spec.name}: has {len(numbers)} numbers; its shape makes {rows * spec.row_items}")
    return from_numbers(spec, rows, np.array(numbers))


def _no_parameters(where: str, parameters: Any) -> None:
    for name, value in parameters.items():
        if name != "binary_data" and _value(value):
            raise malformed(f"{where}: parameter {name!r:.60} is not served")


def _value(parameter: Any) -> object:
    kind = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, kind) if kind else None
