"""The chapter's door: the server updates the parameters, and members get them back before they are used.

An iteration ends with the user's `optimizer.step()`, which finds nothing to do: all gradients have left, and are out of
its sight while it runs. Parameters come back while the next iteration begins. [autops §4.3.1]

PyTorch passes over a parameter without a gradient, and the server over a chunk for which no member had one. Where that
is not the same, since a chunk has other parameters or Adam counts its steps, the iteration is refused before it ends.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from farside.errors import ConfigError
from farside.kmod_shim.engine.aggregation import Hyper
from farside.training.attachment import Attachment
from farside.training.module_use import ModuleHook, ModuleUse
from farside.training.optimizer_rule import numbers_of
from farside.training.optimizer_state import OptimizerState
from farside.training.sampled_words import sampled_at, words_of
from farside.training.tensor_copy import has_bits_of
from farside.training.trainable import LaterParameters, Trainable

_log = logging.getLogger(__name__)

torch: Any = import_module("torch")
_engine: Any = import_module("torch.autograd").Variable._execution_engine


class ServerUpdate(Attachment):
    """A model whose optimizer the server runs."""

    _versions_before = 0

    def __init__(
        self,
        session: Any,
        source: Any,
        trainables: Sequence[Trainable],
        *,
        model: Any,
        optimizer: Any,
        rule: str,
        overlap: bool,
        takes_service: bool,
    ) -> None:
        """Connects; rank 0's parameters and state are everybody's when it returns, or those that the service kept."""
        super().__init__(session, source, trainables)
        self._optimizer = optimizer
        self._counts_steps = rule != "sgd"
        self._passed_over: set[int] = set()
        self._never_stepped = set(range(len(self._parameters)))  # by this process
        self._kept: list[Any] = []  # gradients during a step, which finds none
        self._given: dict[int, _Given] = {}
        self._lock = threading.Lock()  # GPUs have a thread each in backward()
        self._is_joining = False
        self._backward = -1
        self._used_old: frozenset[int] = frozenset()
        self._indices: dict[int, Any] = {}
        self._state = OptimizerState(optimizer, rule, trainables, session.layout)
        self._is_beginning = False
        self._later = LaterParameters(model, optimizer, is_server=True)
        self._numbers: list[Hyper] = []
        self._sampled = [sampled_at(parameter.numel()) for parameter in self._parameters]
        own_iteration, has_own = self._state.iteration, self._state.is_there
        self._connect(self._contents)
        if not takes_service:
            self._check_resume(own_iteration, has_own)
        self._tell_of_resume()
        self._begin(self._begin_iteration)
        self._give(range(len(self._parameters)))
        self._use = ModuleUse(
            model, self._parameters, need=self._need, is_behind=lambda: self._exchange.has_stale, overlap=overlap
        )
        self._hook_gradients()
        self._step_hook = optimizer.register_step_pre_hook(self._before_step)
        after = optimizer.register_step_post_hook(self._after_step)
        # Before those of the script: they see, and clear, the gradients that are there.
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)
        self._hooks += [self._step_hook, after]
        self._state.drop()
        for module in model.modules():
            self._hooks.append(module.register_state_dict_pre_hook(ModuleHook(lambda *_arguments: self.wait())))
            self._hooks.append(module.register_load_state_dict_pre_hook(ModuleHook(self._refuse_load)))
        self._hooks.append(optimizer.register_state_dict_pre_hook(self._before_state_dict))
        packed = optimizer.register_state_dict_post_hook(lambda *_arguments: self._state.drop())
        optimizer._optimizer_state_dict_post_hooks.move_to_end(packed.id, last=False)  # others may fail
        self._hooks.append(packed)
        self._hooks.append(optimizer.register_load_state_dict_pre_hook(self._refuse_load))
        self._hooks.append(self._use)

    # State of the optimizer

    def _contents(self) -> tuple[int, Any] | None:
        """Rank 0's, of a job that begins: None where nothing but parameters is to be given."""
        self._is_beginning = True
        self._copy.put_parameters()
        if not self._state.is_there:
            return None
        # SGD does not say how many steps it has made; with momentum it has made one.
        return max(1, self._state.iteration or 0), self._state.by_chunk()

    def _check_resume(self, own_iteration: int | None, has_own: bool) -> None:
        served, is_first = self._session.first_version, self._source.rank == 0
        if self._is_beginning:
            return
        if own_iteration == served:
            if is_first:  # whose values count where a job begins
                self._check_same(served)
            return
        # Rank 0 knows whether the job begins; the others know that they differ only where they can count.
        if own_iteration is None and not (is_first and has_own):
            return
        own = "a checkpoint" if own_iteration is None else f"iteration {own_iteration}"
        raise ConfigError(
            f"this rank comes with {own}, and the job is at iteration {served}",
            hint='resume="service" takes the job\'s; to begin from yours, load it at rank 0 and name another job',
        )

    def _check_same(self, served: int) -> None:
        """Refuses a model that says it is where the job is, and has been trained otherwise since."""
        for number, one in enumerate(self._trainables):
            if not has_bits_of(one.parameter, self._copy.result(number)):
                raise ConfigError(
                    f"'{one.name}' is not what the job has at iteration {served}, at which this rank says it is",
                    hint='resume="service" takes the job\'s; to begin from yours, name another job',
                )

    def _tell_of_resume(self) -> None:
        served = self._session.first_version
        if served and not self._is_beginning and self._source.rank == 0:
            _log.warning(
                f"farside.attach: job '{self._source.job}' goes on at iteration {served} with what the Aggregators "
                "have kept of it; to begin anew, name another job"
            )

    def _before_state_dict(self, _optimizer: Any) -> None:
        if self._exchange.has_begun:
            raise ConfigError("optimizer.state_dict() between backward() and step()", hint="call it after step()")
        self.wait()
        self._fetch_state()

    def _fetch_state(self) -> None:
        version = self._exchange.version
        if version:
            self._state.put(version, self._session.fetch(version), unstepped=self._never_stepped)

    def _refuse_load(self, *_arguments: Any) -> None:
        raise ConfigError(
            "load_state_dict() after farside.attach would not reach the server",
            hint="load checkpoints before farside.attach; rank 0's counts for all. After training, call "
            "handle.detach() first",
        )

    def detach(self) -> None:
        """Bring parameters and optimizer up to date, take the hooks off, and leave the job; again: does nothing."""
        if self.is_open:
            self.wait()
            if not self._exchange.has_begun:
                self._fetch_state()
            self._leave()

    # Iterations

    @property
    def _waits_late(self) -> bool:
        return self._use.waits_late

    def _begin_iteration(self, iteration: int) -> None:
        self._check_parameters()
        # Hooks of a step that were set since then see gradients before ours takes them away.
        hooks = self._optimizer._optimizer_step_pre_hooks
        if next(reversed(hooks)) != self._step_hook.id:  # in a step it is: that goes through them
            hooks.move_to_end(self._step_hook.id)
        with self._giving:
            self._give(self._exchange.all_stale())
        self._check_all_by_hand()
        now = [numbers_of(self._optimizer, group) for group in self._optimizer.param_groups]
        for group, numbers in enumerate(now):
            if not self._numbers or self._numbers[group] != numbers:
                self._session.member.hyper(group, iteration, numbers)
        self._numbers = now

    def _on_gradient(self, number: int, parameter: Any) -> None:
        self._check_brought(number)
        if number in self._passed_over and self._counts_steps and not self._is_accumulating:
            raise ConfigError(
                f"'{self._trainables[number].name}' has a gradient now, and had none in an iteration before; the "
                "server's Adam counts one step for all parameters, PyTorch's one for each",
                hint='use farside.attach(..., update="worker"), and call step() only after backward()',
            )
        if self._copy.has_devices and not self._is_accumulating:
            # Clipping and scalers would change gradients that are still being copied, and not be noticed.
            with self._lock:
                is_first, self._is_joining = not self._is_joining, True
            if is_first:
                _engine.queue_callback(self._join)
        super()._on_gradient(number, parameter)

    def _check_brought(self, number: int) -> None:
        """Refuses a gradient that was computed with an old parameter: nothing has seen its use."""
        with self._lock:
            backward = torch._C._current_graph_task_id()
            if backward != self._backward:
                # Its first gradient: what is behind now was not brought for what this backward() goes through.
                self._backward, self._used_old = backward, frozenset(self._exchange.all_stale())
        if number in self._used_old:
            raise ConfigError(
                f"'{self._trainables[number].name}' was used before its result had come, by what PyTorch does not show "
                "(code in C++, a compiled function, another thread)",
                hint="call handle.wait() before, or use farside.attach(..., overlap=False)",
            )

    def _join(self) -> None:
        self._is_joining = False
        self._copy.join()

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_for_show():
            self._take_away()
            return
        # 1. Refuse what can't be right before anything more is pushed.
        if next(reversed(optimizer._optimizer_step_pre_hooks)) != self._step_hook.id:
            raise ConfigError(
                "a hook was set before optimizer.step() that would find no gradients any more",
                hint="set it before farside.attach",
            )
        if any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf")):
            raise ConfigError(
                "a GradScaler wants optimizer.step() to unscale the gradients; the server has them as they were",
                hint='use farside.attach(..., update="worker")',
            )
        if kwargs.get("closure") is not None or any(one is not None for one in args[1:]):
            raise ConfigError(
                "optimizer.step() has a closure, which the server can't call",
                hint='call backward() yourself, or use farside.attach(..., update="worker")',
            )
        if self._is_accumulating:
            raise ConfigError("optimizer.step() within handle.accumulate()", hint="end it before the last backward()")
        self._check_parameters()
        self._copy.drain()
        self._check_unchanged()
        self._check_absent()
        # 2. The rest of the iteration.
        absent = self._push_missing()
        self._passed_over.update(absent)
        self._never_stepped.intersection_update(absent)
        self._copy.drain()
        # 3. Nothing is left for the optimizer to do. Afterwards gradients are there until `zero_grad`, as ever.
        self._take_away()
        self._taken.clear()
        self._exchange.finish()
        self._use.begin_iteration()
        self._measure()

    def _is_for_show(self) -> bool:
        """Whether this is what torch.distributed.checkpoint does to an optimizer without a state, to make one."""
        if self._exchange.has_begun or any(float(group["lr"]) for group in self._optimizer.param_groups):
            return False
        there = [one.grad for one in self._parameters if one.grad is not None]
        return bool(there) and not any(bool(gradient.any()) for gradient in there)

    def _take_away(self) -> None:
        self._kept = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def _after_step(self, *_arguments: Any) -> None:
        for parameter, gradient in zip(self._parameters, self._kept, strict=False):
            parameter.grad = gradient
        self._kept = []

    def _check_parameters(self) -> None:
        self._later.check()
        self._state.check_unused()
        for number, parameter in enumerate(self._parameters):
            self._check_format(number, parameter)

    def _check_absent(self) -> None:
        """Refuses a parameter without a gradient that would be updated with its chunk, where zeros are an update."""
        absent = [number for number in self._exchange.missing() if self._parameters[number].grad is None]
        for number in self._exchange.sharing(absent):
            numbers = numbers_of(self._optimizer, self._optimizer.param_groups[self._trainables[number].group])
            if self._counts_steps or numbers.momentum or numbers.weight_decay:
                raise ConfigError(
                    f"'{self._trainables[number].name}' has no gradient in this iteration",
                    hint="use farside.attach(..., find_unused_parameters=True), or freeze it by requires_grad_(False)",
                )

    # Parameters

    def _give(self, tensors: Sequence[int]) -> None:
        """Results into the parameters, unless somebody has changed these since they were given the last time."""
        # What reads parameters here is not a use of them.
        with torch._C.DisableTorchFunction():
            for number in tensors:
                self._check_by_hand(number)
            super()._give(tensors)
            for number in tensors:
                self._given[number] = self._given_now(number)

    def _given_now(self, number: int) -> "_Given":
        parameter = self._parameters[number]
        return _Given(
            parameter._version, parameter.data_ptr(), words_of(self._copy.result(number), self._sampled[number])
        )

    def _check_by_hand(self, number: int) -> None:
        given, parameter = self._given.get(number), self._parameters[number]
        if given is None:
            return
        is_moved, is_counted = parameter.data_ptr() != given.address, parameter._version != given.version
        if is_counted and not is_moved:
            raise self._by_hand(number)
        # A word of a GPU's memory costs a wait for all that it does.
        looks = parameter.device.type == "cpu" or is_moved
        if looks and self._words_at(number, parameter.detach()) != given.words:
            raise self._by_hand(number)

    def _check_all_by_hand(self) -> None:
        """Before anything of an iteration leaves: every result is still where it came, so it can be compared whole."""
        for number, parameter in enumerate(self._parameters):
            if self._given[number][:2] != (parameter._version, parameter.data_ptr()):
                # Changed and put back, as for an evaluation of averaged weights, or given other memory, is no change.
                if not has_bits_of(parameter, self._copy.result(number)):
                    raise self._by_hand(number)
                self._given[number] = self._given_now(number)

    def _by_hand(self, number: int) -> ConfigError:
        return ConfigError(
            f"'{self._trainables[number].name}' was changed by hand since farside.attach; the server has it as it was",
            hint='change it before farside.attach; or use update="worker", and change it on all ranks alike',
        )

    def _check_unchanged(self) -> None:
        """Refuses gradients and numbers that were changed after they were pushed."""
        if not self._exchange.has_begun:
            return
        filled = [number for number in range(len(self._parameters)) if self._exchange.is_filled(number)]
        words = self._words_of_gradients(filled)
        for number in filled:
            pushed = words_of(self._copy.gradient(number, self._exchange.iteration), self._sampled[number])
            if words[number] != pushed or not self._is_as_taken(number):
                raise ConfigError(
                    f"the gradient of '{self._trainables[number].name}' was changed after backward(), as clipping and "
                    "GradScaler do; the server has it as it was",
                    hint='use farside.attach(..., update="worker")',
                )
        for group, numbers in zip(self._optimizer.param_groups, self._numbers, strict=False):
            if numbers_of(self._optimizer, group) != numbers:
                raise ConfigError(
                    "the learning rate or another number of the optimizer was changed between backward() and step()",
                    hint="change it before backward(), or after step() as schedules do",
                )

    def _words_of_gradients(self, numbers: Sequence[int]) -> dict[int, tuple[int, ...] | None]:
        """The sampled words of each gradient; None: it is gone. Those of a GPU come with one copy for each format."""
        found: dict[int, tuple[int, ...] | None] = dict.fromkeys(numbers)
        away: defaultdict[Any, list[int]] = defaultdict(list)
        for number in numbers:
            gradient = self._parameters[number].grad
            if gradient is None:
                continue
            if gradient.device.type == "cpu":
                found[number] = words_of(gradient.detach(), self._sampled[number])
            else:
                away[gradient.device, gradient.dtype].append(number)
        for together in away.values():
            chosen = torch.cat([self._chosen(number, self._parameters[number].grad.detach()) for number in together])
            here, at = chosen.cpu(), 0
            for number in together:
                count = len(self._sampled[number])
                found[number] = words_of(here, tuple(range(at, at + count)))
                at += count
        return found

    def _chosen(self, number: int, tensor: Any) -> Any:
        """The sampled elements, on the tensor's device."""
        if number not in self._indices:
            self._indices[number] = torch.tensor(self._sampled[number], device=tensor.device)
        return tensor.flatten()[self._indices[number]]

    def _words_at(self, number: int, tensor: Any) -> tuple[int, ...]:
        places = self._sampled[number]
        if tensor.device.type == "cpu":
            return words_of(tensor, places)
        return words_of(self._chosen(number, tensor).cpu(), tuple(range(len(places))))


class _Given(NamedTuple):
    """A parameter when a result was put into it: what PyTorch counts of its changes, where it was, and a few words."""

    version: int
    address: int
    words: tuple[int, ...]
