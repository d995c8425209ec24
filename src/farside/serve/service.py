"""What both doors serve: models, their state, and inference on them."""

import asyncio
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farside.agent.serving.model_file import ModelFile
from farside.serve import description
from farside.serve.inference import InferenceError, InferRequest, Kind, model_named
from farside.serve.large.reader import LargeReader
from farside.serve.pool import Pool
from farside.serve.queues import Encode, Waiting

_US = 1e6


class Service:
    """A deployment as its clients see it.

    Args:
        version: Of Farside.
        models: By name.
        slo_s: Seconds by model: the deadline of requests that ask for none, or for more.
        pool: Runs them.
        tokens: One of these has to come with each request; empty: nobody is asked for one.
    """

    def __init__(
        self, version: str, models: Mapping[str, ModelFile], slo_s: Mapping[str, float], pool: Pool,
        tokens: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.version, self.models, self.pool = version, models, pool
        self.large = LargeReader(models)
        self._slo_s, self._tokens = slo_s, [token.encode() for token in tokens]
        self._loop = asyncio.get_running_loop()

    def check_token(self, authorization: str | bytes | None) -> None:
        """Lets a request pass by its Authorization.

        Raises:
            InferenceError: The deployment has tokens, and this is none of them.
        """
        if not self._tokens:
            return
        text = authorization or b""
        given = text.encode("utf-8", "replace") if isinstance(text, str) else text
        kind, _, token = given.partition(b" ")
        is_known = False
        for one in self._tokens:
            is_known |= hmac.compare_digest(one, token.strip())
        if kind.lower() != b"bearer" or not is_known:
            raise InferenceError(
                Kind.UNAUTHENTICATED, "the token is missing or wrong", hint="send Authorization: Bearer TOKEN"
            )

    def model(self, name: str, version: str = "") -> ModelFile:
        """A model by its name; an empty version is its only one.

        Raises:
            InferenceError: There is none of that name or version.
        """
        return model_named(self.models, name, version)

    def is_ready(self) -> bool:
        """Whether each model has a glet."""
        return all(self.pool.is_ready(name) for name in self.models)

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return description.server_metadata(self.version)

    def config(self, model: ModelFile) -> dict[str, Any]:
        """Triton's configuration of a model."""
        return description.model_config(model, self.pool.batches_of(model.name))

    def statistics(self, models: Sequence[ModelFile]) -> dict[str, Any]:
        """Triton's statistics."""
        return {"model_stats": [description.model_statistics(model, self.pool.counts[model.name]) for model in models]}

    def index(self) -> list[dict[str, str]]:
        """Triton's repository index."""
        return description.index(self.models, {name: self.pool.is_ready(name) for name in self.models})

    def submit(
        self, model: ModelFile, request: InferRequest, encode: Encode, arrived_s: float, within_s: float,
        answer: Callable[[Any], None], fail: Callable[[InferenceError], None],
    ) -> Waiting:  # fmt: skip
        """Has ``answer`` called with what ``encode`` makes of the outputs of a request, or ``fail``, maybe at once.

        ``arrived_s``: when the request had come, by the loop's clock. ``within_s``: seconds that its client waits.

        Returns:
            What `Pool.cancel` takes where its client has gone.
        """
        slo_s = self._slo_s[model.name]
        limit_s = min(slo_s, within_s, request.timeout_us / _US if request.timeout_us else slo_s)
        one = Waiting(
            model=model.name, rows=request.rows, inputs=request.inputs, arrived_s=arrived_s,
            deadline_s=arrived_s + limit_s, encode=encode, answer=answer, fail=fail,
        )  # fmt: skip
        self.pool.submit(one)
        return one
