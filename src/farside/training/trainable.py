"""Which parameters of a model are aggregated, and why others cannot be."""

import logging
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

from farside.agent.aggregator.layout import DIMENSIONS_MAX, Tensor
from farside.errors import ConfigError

_log = logging.getLogger(__name__)

torch: Any = import_module("torch")

FORMATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# By the last parts of their classes' names: most of them are libraries that are not installed here.
SHARDED = ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine", "ShardedDataParallel")
WRAPPED = ("DistributedDataParallel", "DataParallel")


class Trainable(NamedTuple):
    """One parameter: its name in the model, and the number of its group in the optimizer."""

    name: str
    parameter: Any
    group: int

    @property
    def tensor(self) -> Tensor:
        """What is declared of it."""
        shape = tuple(self.parameter.shape) if self.parameter.dim() <= DIMENSIONS_MAX else ()
        return Tensor(self.name, self.parameter.numel(), FORMATS[self.parameter.dtype], self.group, shape=shape)


def trainable_in(model: Any) -> tuple[Trainable, ...]:
    """Parameters that want a gradient, in the order of `named_parameters`, a tied one once; all in group 0.

    Raises:
        ConfigError: one of them, or the model, can't be aggregated.
    """
    _check_model(model)
    return _checked(Trainable(name, parameter, 0) for name, parameter in model.named_parameters())


def optimized_in(model: Any, optimizer: Any) -> tuple[Trainable, ...]:
    """Those of them that the optimizer has, with the numbers of their groups.

    Raises:
        ConfigError: one of them, or the model, can't be aggregated; the optimizer is none, or has others.
    """
    _check_model(model)
    check_optimizer(model, optimizer)
    groups = {id(parameter): number for number, parameter in grouped(optimizer)}
    found = _checked(
        Trainable(name, parameter, groups[id(parameter)])
        for name, parameter in model.named_parameters()
        if id(parameter) in groups
    )
    _check_apart(found)
    return found


def _check_apart(trainables: Iterable[Trainable]) -> None:
    """Refuses two parameters in the same memory: each would get the result of its own."""
    ends = sorted(
        (one.parameter.data_ptr(), one.parameter.data_ptr() + one.parameter.nbytes, one.name) for one in trainables
    )
    for (_, end, name), (begin, _, other) in pairwise(ends):
        if begin < end:
            raise ConfigError(
                f"parameters '{name}' and '{other}' are in the same memory",
                hint="make them one torch.nn.Parameter, or each of a clone of its part",
            )


def untrained_in(model: Any, optimizer: Any) -> tuple[str, ...]:
    """Names of parameters that want a gradient and are not the optimizer's."""
    known = {id(parameter) for _group, parameter in grouped(optimizer)}
    return tuple(
        name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in known
    )


def _checked(candidates: Iterable[Trainable]) -> tuple[Trainable, ...]:
    wanted = [one for one in candidates if one.parameter.requires_grad]
    for name, parameter, _group in wanted:
        check_parameter(name, parameter)
    found = tuple(one for one in wanted if one.parameter.numel())
    if not found:
        raise ConfigError(
            "no parameter wants a gradient, and nothing is to be aggregated",
            hint="unfreeze what is to be trained before farside.attach",
        )
    return found


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Whether this is an optimizer of this model.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"farside.attach: the optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer",
            hint="give the optimizer itself, not its scheduler or wrapper",
        )
    known = {id(parameter) for parameter in model.parameters()}
    strangers = [number for number, parameter in grouped(optimizer) if id(parameter) not in known]
    if strangers:
        raise ConfigError(
            f"parameter group {strangers[0]} of the optimizer has a parameter that the model does not have",
            hint="give the model and its own optimizer, and attach after both are made",
        )


class LaterParameters:
    """Refuses what would be trained without being aggregated: each rank would train its own, and nobody would know."""

    def __init__(self, model: Any, optimizer: Any, *, is_server: bool) -> None:
        """What is frozen now is to stay so.

        ``is_server``: of the model only what the optimizer has is aggregated; that stays in its group, and groups what
        they are.
        """
        self._model, self._optimizer, self._is_server = model, optimizer, is_server
        own = {id(parameter) for _group, parameter in grouped(optimizer)}
        # Kept, so that no later parameter has the id of one of these.
        self._of_model = tuple(model.named_parameters())
        self._known = own | {id(parameter) for _name, parameter in self._of_model}
        self._may_have = own if is_server else self._known
        self._groups = _groups_of(optimizer) if is_server else None
        self._frozen = [
            (name, parameter)
            for name, parameter in self._of_model
            if not parameter.requires_grad and (not is_server or id(parameter) in own)
        ]
        self._registrations = _count_registrations()
        self._new: list[tuple[str, Any]] = []

    def check(self) -> None:
        """Whether all is as it was.

        Raises:
            ConfigError: the optimizer has got a parameter, or one that was frozen wants a gradient.
        """
        for number, parameter in grouped(self._optimizer):
            if id(parameter) not in self._may_have:
                names = (name for name, one in self._model.named_parameters() if one is parameter)
                which = next((f"parameter '{name}'" for name in names), f"a parameter of group {number}")
                raise ConfigError(
                    f"{which} was added to the optimizer after farside.attach, and is not aggregated",
                    hint="add all parameters before farside.attach",
                )
        if self._groups is not None and self._groups != _groups_of(self._optimizer):
            raise ConfigError(
                "the optimizer's parameters or the kind of a group are other ones than at farside.attach; the server "
                "has them as they were",
                hint="change parameter groups before farside.attach; their numbers, such as lr, may change later",
            )
        self._check_new()
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise ConfigError(
                    f"parameter '{name}' was unfrozen after farside.attach, and is not aggregated",
                    hint='unfreeze it before farside.attach; with update="worker" it may be frozen again until it is '
                    "trained",
                )

    def _check_new(self) -> None:
        if self._registrations != _count_registrations():
            self._registrations = _count_registrations()
            parameters = self._model.named_parameters()
            self._new = [(name, one) for name, one in parameters if id(one) not in self._known]
        for name, parameter in tuple(self._new):
            if not parameter.is_leaf or parameter.grad is None:
                continue  # a copy that is never trained, such as an average
            line = f"parameter '{name}' has come into the model since farside.attach, and is not aggregated"
            if not self._is_server:
                raise ConfigError(line, hint="make all modules before farside.attach")
            # As one that the optimizer did not have at attach.
            _log.warning(f"{line}: each rank keeps its own")
            self._known.add(id(parameter))
            self._new.remove((name, parameter))

    def check_kept(self) -> None:
        """Whether the model still has its parameters.

        Raises:
            ConfigError: one has been replaced.
        """
        now = {id(parameter) for parameter in self._model.parameters()}
        for name, parameter in self._of_model:
            if parameter.requires_grad and id(parameter) not in now:
                raise ConfigError(
                    f"parameter '{name}' is another one than at farside.attach, and is not aggregated",
                    hint="load with assign=True before farside.attach",
                )


_counted = [0]


def _count_registrations() -> int:
    """How many parameters and modules PyTorch has put into modules since this was asked first."""
    if not _counted[0]:
        modules = import_module("torch.nn.modules.module")
        modules.register_module_parameter_registration_hook(_note_registration)
        modules.register_module_module_registration_hook(_note_registration)
        _counted[0] = 1
    return _counted[0]


def _note_registration(*_arguments: Any) -> None:
    _counted[0] += 1


def _groups_of(optimizer: Any) -> list[tuple[Any, ...]]:
    """By group its parameters, and the options that decide which optimizer it is."""
    return [
        (group.get("decoupled_weight_decay"), *(id(parameter) for parameter in group["params"]))
        for group in optimizer.param_groups
    ]


def grouped(optimizer: Any) -> Iterator[tuple[int, Any]]:
    """Parameters of an optimizer with the numbers of their groups."""
    for number, group in enumerate(optimizer.param_groups):
        yield from ((number, parameter) for parameter in group["params"])


def _check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"farside.attach: the model is a {type(model).__name__}, not a torch.nn.Module")
    if torch.is_inference_mode_enabled():
        raise ConfigError("farside.attach within torch.inference_mode()", hint="attach outside of it")
    for name, module in model.named_modules():
        # A module that FSDP2 has taken has a class of its own with FSDPModule among its bases.
        kinds = {base.__name__ for base in type(module).__mro__}
        where = f"module '{name}'" if name else "the model"
        if kinds & set(SHARDED):
            raise ConfigError(
                f"{where} is sharded ({type(module).__name__}); sharded parameters can't be aggregated",
                hint="train it without sharding, or without Farside's aggregation",
            )
        if kinds & set(WRAPPED):
            raise ConfigError(
                f"{where} is wrapped by {type(module).__name__}, which sums gradients itself",
                hint="attach to the model inside, or register farside.training.ddp.hook",
            )
        is_embedding = isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
        if is_embedding and module.sparse and module.weight.requires_grad:
            raise ConfigError(f"{where} has sparse gradients", hint="make it with sparse=False")


def check_parameter(name: str, parameter: Any) -> None:
    """Whether one parameter can be aggregated.

    Raises:
        ConfigError: it can't.
    """
    if type(parameter) is not torch.nn.Parameter or type(parameter.data) is not torch.Tensor:
        raise ConfigError(
            f"parameter '{name}' is a {type(parameter).__name__}; only ordinary parameters can be aggregated",
            hint="run a lazy module once before attach; train without sharding",
        )
    if parameter.dtype not in FORMATS:
        raise ConfigError(
            f"parameter '{name}' is of {parameter.dtype}; float32, float16 and bfloat16 can be aggregated",
            hint="convert the model, or freeze this parameter",
        )
    if torch._debug_has_internal_overlap(parameter.detach()) == 1:
        raise ConfigError(
            f"parameter '{name}' has several elements in the same memory, as expand() makes them",
            hint="make it of a clone",
        )
    if parameter.is_inference():
        raise ConfigError(f"parameter '{name}' was made in torch.inference_mode()", hint="make the model outside")
    if parameter.device.type not in ("cpu", "cuda"):
        raise ConfigError(f"parameter '{name}' is on device {parameter.device}; use the CPU or CUDA")
    if parameter.layout is not torch.strided:
        raise ConfigError(f"parameter '{name}' is sparse ({parameter.layout}); only dense ones can be aggregated")
