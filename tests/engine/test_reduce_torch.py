"""The engine's optimizers against PyTorch's own."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from farside.kmod_shim.engine.aggregation import DType, Hyper, Rule, reduce

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

PARAMETERS, STEPS, MEMBERS = 5000, 50, 2


def train_beside(name: str, rule: Rule, hyper: Hyper, **options: Any) -> tuple[list[Any], list[Any]]:
    """What torch.optim and the engine hold after the same steps: parameters, then the optimizer's arrays."""
    torch: Any = import_module("torch")  # tests that lack it are skipped

    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(PARAMETERS))
    optimizer = getattr(torch.optim, name)([parameter], lr=hyper.lr, weight_decay=hyper.weight_decay, **options)
    kept = {Rule.SGD: ["momentum_buffer"] if hyper.momentum else [], Rule.ADAM: ["exp_avg", "exp_avg_sq"]}
    names = kept[Rule.SGD if rule is Rule.SGD else Rule.ADAM]
    ours = [parameter.detach().numpy().copy()] + [np.zeros(PARAMETERS, np.float32) for _ in names]
    output = np.zeros(PARAMETERS, np.float32)
    for step in range(1, STEPS + 1):
        gradients = [torch.randn(PARAMETERS) for _ in range(MEMBERS)]
        parameter.grad = (gradients[0] + gradients[1]) / MEMBERS
        optimizer.step()
        reduce(rule, DType.F32, [each.numpy() for each in gradients], [output], step=step, hyper=hyper, masters=ours)
    theirs = [parameter.detach().numpy(), *(optimizer.state[parameter][each].numpy() for each in names)]
    return ours, theirs


@pytest.mark.parametrize(
    ("hyper", "options"),
    [
        (Hyper(lr=0.1), {}),
        (Hyper(lr=0.05, weight_decay=1e-4, momentum=0.9), {"momentum": 0.9}),
        (Hyper(lr=0.05, momentum=0.9, nesterov=True), {"momentum": 0.9, "nesterov": True}),
    ],
    ids=["plain", "momentum", "nesterov"],
)
def test_sgd_is_pytorchs_bit_for_bit(hyper: Hyper, options: dict[str, Any]) -> None:
    ours, theirs = train_beside("SGD", Rule.SGD, hyper, **options)

    for mine, other in zip(ours, theirs, strict=True):
        assert np.array_equal(mine.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize(
    ("name", "rule", "hyper"),
    [
        ("Adam", Rule.ADAM, Hyper()),
        ("Adam", Rule.ADAM, Hyper(beta1=0.25, beta2=0.99)),
        ("AdamW", Rule.ADAMW, Hyper(weight_decay=0.05)),
    ],
    ids=["adam", "adam-small-beta", "adamw"],
)
def test_adams_moments_are_pytorchs_and_its_parameters_but_for_the_root(name: str, rule: Rule, hyper: Hyper) -> None:
    ours, theirs = train_beside(name, rule, hyper, betas=(hyper.beta1, hyper.beta2))

    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert np.array_equal(mine.view(np.uint32), other.view(np.uint32))
    # PyTorch's square root on a CPU is an ulp off in one element of eight; the engine's is rounded correctly.
    assert np.abs(ours[0] - theirs[0]).max() <= 5e-7
