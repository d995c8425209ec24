"""The state of an optimizer that the server runs: out of it for `state_dict`, into it from a checkpoint.

The server counts one step for all parameters, its iterations; PyTorch counts one for each. PyTorch's SGD counts none.
So the iteration is kept in the optimizer's first parameter group, where it goes through checkpoints unchanged.
"""

import ctypes
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from farside.agent.aggregator.layout import Layout
from farside.errors import ConfigError
from farside.training.trainable import Trainable

torch: Any = import_module("torch")

ChunkState: TypeAlias = Sequence[Any]  # buffers of float32: parameters, then momentum, or two moments

KEPT: Mapping[str, tuple[str, ...]] = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}
"""PyTorch's names of what the server keeps of a parameter, in its order."""
ITERATION = "farside_iteration"


class OptimizerState:
    """An optimizer's state, as it is in PyTorch and as it is by chunk."""

    def __init__(self, optimizer: Any, rule: str, trainables: Sequence[Trainable], layout: Layout) -> None:
        """``trainables`` are the layout's tensors."""
        self._optimizer, self._rule, self._trainables, self._layout = optimizer, rule, tuple(trainables), layout
        self._names = KEPT[rule]
        self._at_attach = optimizer.state
        self._is_shown = False

    @property
    def is_there(self) -> bool:
        """Whether the optimizer has stepped, or a checkpoint was loaded into it."""
        return self.iteration is not None or any(self._of(one) for one in self._trainables)

    @property
    def iteration(self) -> int | None:
        """Iterations that it has made; None: it does not say.

        Raises:
            ConfigError: some of its parameters have made more than others.
        """
        steps = {int(state["step"]): one.name for one in self._trainables if "step" in (state := self._of(one))}
        if len(steps) > 1:
            raise ConfigError(
                f"the optimizer has made {min(steps)} steps with '{steps[min(steps)]}' and {max(steps)} with "
                f"'{steps[max(steps)]}'; the server counts one for all",
                hint='use farside.attach(..., update="worker")',
            )
        found = next(iter(steps), None) if steps else self._optimizer.param_groups[0].get(ITERATION)
        return None if found is None else int(found)

    def _of(self, one: Trainable) -> Mapping[str, Any]:
        state = self._optimizer.state.get(one.parameter, {})
        return {name: value for name, value in state.items() if value is not None}

    def by_chunk(self) -> list[ChunkState]:
        """What the server is to begin with: parameters and state of each chunk."""
        arrays = [self._flat(one) for one in self._trainables]
        return [
            tuple(
                _bytes_of(torch.cat([arrays[piece.tensor][kind][piece.offset :][: piece.count] for piece in pieces]))
                for kind in range(1 + len(self._names))
            )
            for pieces in self._layout.chunks
        ]

    def _flat(self, one: Trainable) -> list[Any]:
        state, parameter = self._of(one), one.parameter.detach()
        kept = [state.get(name) for name in self._names]
        every = [parameter, *(torch.zeros_like(parameter) if value is None else value for value in kept)]
        return [value.detach().to("cpu", torch.float32).flatten() for value in every]

    def put(self, iteration: int, by_chunk: Sequence[ChunkState], *, unstepped: Collection[int]) -> None:
        """Give the optimizer what was fetched from the server, as if it had made its steps itself.

        ``unstepped``: parameters, by number, that are not known to have had a gradient; it is seen by their state.
        """
        parts: list[list[list[Any]]] = [[[] for _name in self._names] for _one in self._trainables]
        for pieces, arrays in zip(self._layout.chunks, by_chunk, strict=True):
            for kind, array in enumerate(arrays[1:]):
                whole, at = torch.frombuffer(bytearray(array), dtype=torch.float32), 0
                for piece in pieces:
                    parts[piece.tensor][kind].append(whole[at : at + piece.count])
                    at += piece.count
        for number, (one, kinds) in enumerate(zip(self._trainables, parts, strict=True)):
            # Never stepped, or SGD that never had a momentum: PyTorch has no state of it either.
            is_known = self._rule != "sgd" and number not in unstepped
            if not is_known and not any(bool(array.any()) for found in kinds for array in found):
                continue
            state = {
                name: torch.cat(found).view(one.parameter.shape).to(one.parameter)
                for name, found in zip(self._names, kinds, strict=True)
            }
            if self._rule != "sgd":
                state["step"] = torch.tensor(float(iteration))
            self._optimizer.state[one.parameter] = state
        self._optimizer.param_groups[0][ITERATION] = iteration
        self._is_shown = True

    def check_unused(self) -> None:
        """Whether the optimizer still has no state of its own.

        Raises:
            ConfigError: the script has put something there, which the server does not see.
        """
        if self._is_shown:  # who asked for it has failed before the end
            self.drop()
        state = self._optimizer.state
        if state is not self._at_attach or any(state.get(one.parameter) for one in self._trainables):
            raise ConfigError(
                "optimizer.state was changed by hand since farside.attach, and the server has the state",
                hint='change it before farside.attach, or use farside.attach(..., update="worker")',
            )

    def drop(self) -> None:
        """Let the state go: the server has it."""
        self._optimizer.state.clear()
        self._optimizer.param_groups[0].pop(ITERATION, None)
        self._is_shown = False


def iteration_of(optimizer: Any) -> int:
    """Steps that an optimizer says it has made, with the parameter that has most; 0 where it does not say."""
    steps = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    return max(steps, default=int(optimizer.param_groups[0].get(ITERATION, 0)))


def _bytes_of(tensor: Any) -> bytes:
    return bytes((ctypes.c_char * (4 * tensor.numel())).from_address(tensor.data_ptr()))
