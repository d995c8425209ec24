"""Our dashboard by Grafana's own types (grafana-foundation-sdk, generated from Grafana's schema for one version of it).

They read what they know and drop the rest, so a field that does not come back is one that Grafana would skip.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.interop.dashboard import PATH


@pytest.fixture(scope="module", autouse=True)
def _panels_are_known() -> None:
    register_default_plugins()


def not_grafanas(told: object) -> list[str]:
    """The places of what its types do not know, or know otherwise."""
    assert isinstance(told, dict)
    return list(_lost(told, json.loads(JSONEncoder().encode(Dashboard.from_json(told))), "dashboard"))


def _lost(told: object, back: object, where: str) -> Iterator[str]:
    if isinstance(told, dict) and isinstance(back, dict):
        for name, value in told.items():
            if name in back:
                yield from _lost(value, back[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(told, list) and isinstance(back, list) and len(told) == len(back):
        for at, (one, other) in enumerate(zip(told, back, strict=True)):
            yield from _lost(one, other, f"{where}[{at}]")
    elif told != back:
        yield where


def test_grafana_s_own_types_know_every_field_of_the_dashboard() -> None:
    assert not_grafanas(json.loads(PATH.read_text())) == []


@pytest.mark.parametrize(
    "place", [(), ("templating", "list", 0), ("panels", 1), ("panels", 1, "targets", 0), ("panels", 1, "options")]
)
def test_a_field_that_grafana_does_not_know_is_noticed(place: tuple[str | int, ...]) -> None:
    told: Any = json.loads(PATH.read_text())
    part = told
    for step in place:
        part = part[step]
    part["refreshh"] = "30s"

    assert [where.rpartition(".")[2] for where in not_grafanas(told)] == ["refreshh"]
