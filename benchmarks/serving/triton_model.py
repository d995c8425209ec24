"""A model for Triton's Python backend, which calls ONNX Runtime on all requests as one batch.

Triton starts it by another Python, where nothing of Farside is; where its packages are is written before this text
(`triton.py`).
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


class TritonPythonModel:
    """What the backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the model, and runs a batch of each size."""
        config = json.loads(args["model_config"])
        file = config["parameters"]["file"]["string_value"]
        self._numpy = importlib.import_module("numpy")
        self._backend = importlib.import_module("triton_python_backend_utils")
        ort = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        row = self._session.get_inputs()[0].shape[1:]
        for batch in range(1, config["max_batch_size"] + 1):
            self._session.run(None, {"input": self._numpy.zeros((batch, *row), "f4")})

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """An answer to each request."""
        backend = self._backend
        given = [backend.get_input_tensor_by_name(one, "input").as_numpy() for one in requests]
        (found,) = self._session.run(None, {"input": self._numpy.concatenate(given) if given[1:] else given[0]})
        answers, at = [], 0
        for one in given:
            part = backend.Tensor("output", found[at : at + len(one)])
            answers.append(backend.InferenceResponse(output_tensors=[part]))
            at += len(one)
        return answers
