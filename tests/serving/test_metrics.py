"""What metrics say of a deployment."""

from types import SimpleNamespace

import pytest

from farside.serve.metrics import serving_registry
from farside.serve.status import ServeStatus


@pytest.mark.parametrize(
    ("plan_problem", "lease_problem", "has_plan"),
    [("", "", 1.0), ("", "lease 12: its node is lost", 1.0), ("net does not fit: too much", "", 0.0)],
)
def test_a_lease_that_was_lost_says_nothing_of_the_plan(plan_problem: str, lease_problem: str, has_plan: float) -> None:
    status = ServeStatus(
        name="t", http="", grpc="", driver="gpu", devices=1, ready=True, glets=(), models=(), changes=(), deaths=0,
        stray=0, plan_problem=plan_problem, lease_problem=lease_problem, manager="tcp:manager:1",
    )  # fmt: skip

    registry = serving_registry(SimpleNamespace(models={}), lambda: status)  # type: ignore[arg-type]

    assert registry.get_sample_value("farside_serving_has_plan") == has_plan
