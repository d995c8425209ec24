"""What the service itself refuses, and how a job of it begins again."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import farside
from farside.errors import FarsideError
from tests.aggregation.service import Service, service, write_key
from tests.support.waiting import until
from tests.training.models import Convolutions, differing, made, needs_torch, parameters_of, torch, train_alone

pytestmark = needs_torch
STEPS = 4


@pytest.fixture(scope="module")
def aggregator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    write_key(folder)
    with service(folder) as running:
        yield running


def run(aggregator: Service, job: str, body: Callable[[int, Callable[..., Any]], Any]) -> list[Any]:
    """What both ranks come back with, as threads of this process."""

    def member(rank: int) -> Any:
        def attach(model: Any, optimizer: Any, **options: Any) -> Any:
            key: Path = aggregator.folder / "key"
            told: dict[str, Any] = {
                "service": [aggregator.unix],
                "key_file": key,
                "job": job,
                "rank": rank,
                "members": 2,
            }
            return farside.attach(model, optimizer, **{**told, **options})

        return body(rank, attach)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(member, (0, 1)))


def sgd(model: Any, lr: float = 0.1) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def test_another_learning_rate_than_rank_0s_ends_that_rank_with_one_line(aggregator: Service) -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        optimizer = sgd(model, lr=0.1 * (1 + rank))
        handle = attach(model, optimizer)

        def train() -> None:
            for iteration in range(2):  # it may be told when the first one is over
                model.loss(rank, iteration).backward()
                optimizer.step()
                handle.wait()

        if rank == 0:
            with contextlib.suppress(FarsideError):  # it waits for the other rank, unless that one's end comes first
                model.loss(rank, 0).backward()
                optimizer.step()
            return ""
        with pytest.raises(FarsideError) as refused:
            train()
        return str(refused.value)

    assert run(aggregator, "rates", body)[1].startswith("this rank's learning rate, or another number of its optimizer")


def test_a_job_that_only_sums_begins_again_with_rank_0s_parameters(aggregator: Service) -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, rank)
        optimizer = sgd(model)
        handle = attach(model, optimizer, update="worker")
        assert handle.iteration == 0
        for iteration in range(STEPS):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
        assert handle.iteration == STEPS
        handle.detach()
        return parameters_of(model)

    found = [*run(aggregator, "sums", body), *run(aggregator, "sums", body)]

    model = made(Convolutions, 0)
    wanted = train_alone(model, sgd(model), members=2, steps=STEPS)
    assert [differing(one, wanted) for one in found] == [{}] * 4


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 5), (4, 3)], ids=["larger", "transposed"])
def test_another_model_than_rank_0s_is_refused_with_the_tensor_that_differs(
    aggregator: Service, inputs: int, outputs: int
) -> None:
    first_came = threading.Event()

    def body(rank: int, attach: Any) -> str:
        model = torch.nn.Linear(inputs, outputs) if rank else torch.nn.Linear(3, 4)
        if rank == 0:
            attach(model, sgd(model))
            first_came.set()
            return ""
        first_came.wait()
        with pytest.raises(FarsideError) as refused:
            attach(model, sgd(model))
        return str(refused.value)

    line = run(aggregator, f"models-{inputs}", body)[1]

    assert f"tensor 'weight': shape {outputs}x{inputs} here and 4x3 at rank 0" in line
    assert "\n" not in line


def test_a_script_that_is_run_again_with_another_model_is_told_that_the_first_run_is_kept(aggregator: Service) -> None:
    def train(rank: int, attach: Any) -> None:
        model = torch.nn.Linear(3, 4)
        optimizer = sgd(model)
        handle = attach(model, optimizer)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        handle.detach()

    def train_another(rank: int, attach: Any) -> str:
        model = torch.nn.Linear(3, 5)
        with pytest.raises(FarsideError) as refused:
            attach(model, sgd(model))
        return str(refused.value)

    def kept() -> list[str]:
        return [line for line in run(aggregator, "again", train_another) if "is kept for" in line]

    run(aggregator, "again", train)

    for line in until(kept, what="the end of the first run"):
        assert re.search(
            r"'weight': shape 5x3 here and 4x3 at rank [01]\. Job again has ended and is kept for \d+ s", line
        )
        assert line.endswith(": to begin anew, name another job, or wait")


def test_another_update_than_rank_0s_is_refused_as_that(aggregator: Service) -> None:
    first_came = threading.Event()

    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        if rank == 0:
            attach(model, sgd(model))
            first_came.set()
            return ""
        first_came.wait()
        with pytest.raises(FarsideError) as refused:
            attach(model, sgd(model), update="worker")
        return str(refused.value)

    line = run(aggregator, "updates", body)[1]

    assert "update is 'worker' here and 'server' at rank 0; let all ranks say the same" in line


def test_a_rank_that_comes_anew_alone_is_refused_where_aggregators_only_sum(aggregator: Service) -> None:
    trained = threading.Barrier(2)
    refused_line: list[str] = []

    def body(rank: int, attach: Any) -> None:
        model = made(Convolutions, 0)
        handle = attach(model, sgd(model), update="worker")
        model.loss(rank, 0).backward()
        trained.wait()
        if rank == 1:
            handle.detach()
            with pytest.raises(FarsideError) as refused:
                attach(model, sgd(model), update="worker")
            refused_line.append(str(refused.value))
        trained.wait()
        handle.detach()

    run(aggregator, "anew", body)

    assert refused_line[0].endswith("its parameters are in its processes alone; start all ranks again")


def test_two_models_of_a_process_train_beside_each_other_as_jobs_with_names_of_their_own(
    aggregator: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARSIDE_AGGREGATION_SERVICE", aggregator.unix)
    monkeypatch.setenv("FARSIDE_AGGREGATION_KEY_FILE", str(aggregator.folder / "key"))

    def body(rank: int, attach: Any) -> Any:
        models = [made(Convolutions, seed) for seed in (0, 1)]
        optimizers = [sgd(model) for model in models]
        handles = [
            attach(models[0], optimizers[0], service=aggregator.unix),
            farside.attach(models[1], optimizers[1], job="second", rank=rank, members=2),
        ]
        for iteration in range(STEPS):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                model.loss(rank, iteration).backward()
                optimizer.step()
        for handle in handles:
            handle.detach()
        return [parameters_of(model) for model in models]

    found = run(aggregator, "first", body)

    for seed in (0, 1):
        model = made(Convolutions, seed)
        wanted = train_alone(model, sgd(model), members=2, steps=STEPS)
        assert [differing(one[seed], wanted) for one in found] == [{}, {}]


def test_an_admin_socket_is_no_aggregator_and_the_line_says_what_to_name(aggregator: Service) -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        with pytest.raises(FarsideError) as refused:
            attach(model, sgd(model), service=f"unix:{aggregator.socket}")
        return str(refused.value)

    for line in run(aggregator, "admin", body):
        assert (
            "what answers there is no Aggregator; name an address of its setting `listen`, such as unix:/run/" in line
        )
        assert "\n" not in line


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"job": "mine"},
            "job is given, and this process is in a job of a manager's, which has its own; leave job out",
        ),
        ({"rank": 1}, "of rank and members only one is given; give both, or neither"),
    ],
)
def test_arguments_that_would_count_for_nothing_are_refused(
    given: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARSIDE_AGGREGATION", "/run/farside/relay.sock")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    model = made(Convolutions, 0)

    with pytest.raises(FarsideError, match=line):
        farside.attach(model, sgd(model), **given)
