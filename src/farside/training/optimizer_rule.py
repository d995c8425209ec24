"""Which of torch.optim's optimizers the server has, and with which numbers. [autops §4.3.1: the server updates]"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from farside.errors import ConfigError
from farside.kmod_shim.engine.aggregation import Hyper

torch: Any = import_module("torch")

ELSE = 'use farside.attach(..., update="worker"), which takes any optimizer'


def rule_of(optimizer: Any) -> str:
    """The rule that does what this optimizer does: one of `layout.RULES`.

    Raises:
        ConfigError: the server has no such optimizer, or not one of its options.
    """
    # A class of the user's own may step otherwise, so subclasses don't count.
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise ConfigError(f"the server has no optimizer {kind.__name__}, only SGD, Adam and AdamW", hint=ELSE)
    rules = {_rule_of_group(kind, group) for group in optimizer.param_groups}
    if len(rules) > 1:
        raise ConfigError(f"{kind.__name__}: decoupled_weight_decay differs between parameter groups", hint=ELSE)
    for group in optimizer.param_groups:
        numbers_of(optimizer, group)
    return rules.pop()


def _rule_of_group(kind: Any, group: Mapping[str, Any]) -> str:
    if kind is torch.optim.SGD:
        return "sgd"
    return "adamw" if kind is torch.optim.AdamW or group.get("decoupled_weight_decay") else "adam"


def numbers_of(optimizer: Any, group: Mapping[str, Any]) -> Hyper:
    """A parameter group's numbers as they are now.

    Raises:
        ConfigError: an option that the server does not have.
    """
    for option in ("maximize", "amsgrad", "differentiable", "dampening"):
        if group.get(option):
            raise ConfigError(f"{type(optimizer).__name__}: the server does not have the option {option}", hint=ELSE)
    beta1, beta2 = group.get("betas", (0.9, 0.999))
    return Hyper(
        lr=float(group["lr"]),
        weight_decay=float(group["weight_decay"]),
        momentum=float(group.get("momentum", 0.0)),
        beta1=float(beta1),
        beta2=float(beta2),
        eps=float(group.get("eps", 1e-8)),
        nesterov=bool(group.get("nesterov", False)),
    )
