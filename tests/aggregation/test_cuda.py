"""Members on a GPU: gradients leave and results come through pinned memory, and are those of one process."""

from itertools import product

import pytest

from tests.aggregation.service import service
from tests.training.member_processes import KINDS, OPTIMIZERS, Case, run_cases
from tests.training.models import differing, made, needs_cuda, train_alone

pytestmark = needs_cuda
STEPS = 20
DOORS = ("server", "worker", "ddp")
# Their true gradient is zero: Adam steps on what rounding leaves.
WITHOUT_GRADIENT = {"convolution.bias", "attention.in_proj_bias"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Every case after its steps, two members each."""
    folder = tmp_path_factory.mktemp("cuda")
    with service(folder, "a") as one:
        cases = [
            Case(
                name=f"{kind}-{optimizer}-{door}",
                kind=kind,
                optimizer=optimizer,
                door=door,
                members=2,
                steps=STEPS,
                folder=str(folder),
                service=(one.unix,),
                device="cuda",
            )
            for kind, optimizer, door in product(KINDS, OPTIMIZERS, DOORS)
        ]
        run_cases(cases)
    return {case.name: case for case in cases}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_members_on_a_gpu_are_equal_to_each_other_and_close_to_one_process(
    trained: dict[str, Case], kind: str, optimizer: str, door: str
) -> None:
    one, other = trained[f"{kind}-{optimizer}-{door}"].results()

    model = made(KINDS[kind], seed=0).cuda()
    wanted = train_alone(model, OPTIMIZERS[optimizer](model.parameters()), members=2, steps=STEPS)

    assert differing(one, other) == {}
    # Sums of a GPU's kernels need not come in one order.
    apart = differing(one, {name: value.cpu() for name, value in wanted.items()})
    assert {name: by for name, by in apart.items() if by > 1e-4 and name not in WITHOUT_GRADIENT} == {}
