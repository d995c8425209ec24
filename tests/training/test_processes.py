"""Members that are processes, and a `farside aggregator`: equal to one process, and to DistributedDataParallel."""

from itertools import product
from typing import Any

import pytest

from tests.aggregation.service import service
from tests.support.ports import free_port
from tests.training.member_processes import KINDS, OPTIMIZERS, Case, run_cases
from tests.training.models import differing, made, needs_torch, train_alone

pytestmark = needs_torch
STEPS = 50


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Every case after its steps; they share two Aggregators, one of which is reached by TCP."""
    folder = tmp_path_factory.mktemp("processes")
    with service(folder, "a") as one, service(folder, "b", tcp_port=free_port()) as other:
        cases = [
            Case(
                name=f"{kind}-{optimizer}-{door}-{members}",
                kind=kind,
                optimizer=optimizer,
                door=door,
                members=members,
                steps=STEPS,
                folder=str(folder),
                service=(one.unix, other.tcp),
            )
            for kind, optimizer, (door, members) in product(KINDS, OPTIMIZERS, DOORS)
        ]
        run_cases(cases)
    return {case.name: case for case in cases}


DOORS = [("server", 2), ("server", 4), ("worker", 2), ("worker", 4), ("ddp", 2), ("gloo", 2)]


def alone(case: Case) -> Any:
    model = made(KINDS[case.kind], seed=0)
    return train_alone(model, OPTIMIZERS[case.optimizer](model.parameters()), members=case.members, steps=case.steps)


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_sums_of_processes_are_one_process_bit_for_bit(
    trained: dict[str, Case], kind: str, optimizer: str, members: int
) -> None:
    case = trained[f"{kind}-{optimizer}-worker-{members}"]

    wanted = alone(case)

    assert [differing(one, wanted) for one in case.results()] == [{}] * members


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("kind", list(KINDS))
def test_sgd_of_the_server_is_one_process_bit_for_bit(trained: dict[str, Case], kind: str, members: int) -> None:
    case = trained[f"{kind}-sgd-server-{members}"]

    wanted = alone(case)

    assert [differing(one, wanted) for one in case.results()] == [{}] * members


# Their true gradient is zero: a bias before a norm, and attention's of the keys. Adam steps on what rounding leaves.
WITHOUT_GRADIENT = {"convolution.bias", "attention.in_proj_bias"}


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("kind", list(KINDS))
def test_adam_of_the_server_is_within_1e_6_of_one_process(trained: dict[str, Case], kind: str, members: int) -> None:
    case = trained[f"{kind}-adam-server-{members}"]

    apart = differing(case.results()[0], alone(case))

    assert all(differing(one, case.results()[0]) == {} for one in case.results())
    assert {name: by for name, by in apart.items() if by > 1e-6 and name not in WITHOUT_GRADIENT} == {}


@pytest.mark.parametrize("door", ["worker", "ddp"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_two_members_are_distributed_data_parallel_over_gloo_bit_for_bit(
    trained: dict[str, Case], kind: str, optimizer: str, door: str
) -> None:
    found = trained[f"{kind}-{optimizer}-{door}-2"].results()
    wanted = trained[f"{kind}-{optimizer}-gloo-2"].results()

    assert differing(found[0], wanted[0]) == {}
    assert differing(found[1], wanted[1]) == {}


@pytest.mark.parametrize("kind", list(KINDS))
def test_sgd_of_the_server_is_distributed_data_parallel_over_gloo_bit_for_bit(
    trained: dict[str, Case], kind: str
) -> None:
    found = trained[f"{kind}-sgd-server-2"].results()

    assert differing(found[0], trained[f"{kind}-sgd-gloo-2"].results()[0]) == {}
