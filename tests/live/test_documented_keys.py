"""Every key of a listing's JSON is in docs/manager.md and in the OpenAPI document, and no key is there that is not."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import msgspec
import pytest

from farside.cli.job_file import job_keys
from farside.scheduler.manager.model.event import CancelRequested, Entry, NodesReserved
from farside.scheduler.manager.model.spec import JobBody
from farside.scheduler.manager.view.audit import show_audit
from farside.scheduler.manager.view.overview import Glimpse, Sensed, Survey, show_overview
from farside.scheduler.manager.view.power import energy_of, show_power
from farside.scheduler.manager.view.safeguard import MemoryLimit, Safeguard
from farside.scheduler.manager.view.usage import Usage, show_usage
from farside.scheduler.manager.view.view import (
    EndedStart,
    show_entry,
    show_job,
    show_job_in_full,
    show_node,
    show_reservation,
)
from tests.live.test_api import Api, api_test
from tests.live.world import World, rules

ENTRY = Entry(seq=1, at_s=0.0, generation=0, cause="user ann", event=CancelRequested(job_id="1", by="ann"))
MANUAL = (Path(__file__).parents[2] / "docs/manager.md").read_text()
TEXT = MANUAL.partition("## Keys of `--json`")[2]


def world() -> World:
    made = World(rules(), nodes=1)
    made.submit()
    made.does(NodesReserved(nodes=("n0",), begin_s=5000.0, end_s=6000.0, reason="", by="root"))
    return made


def keys_of(what: str) -> set[str]:
    """Names in backticks in what is said of ``what --json``, up to the next empty line."""
    said = TEXT[TEXT.rindex(f"`{what} --json`") :].partition("\n\n")[0]
    return set(re.findall(r"`([a-z_]+)`", said))


SHOWN: dict[str, Callable[[World], tuple[msgspec.Struct, ...]]] = {
    "nodes": lambda w: (show_node(w.state.nodes["n0"]),),
    "reservations": lambda w: (show_reservation(w.state.maintenance["m1"], w.state, w.now_s),),
    "usage": lambda w: (show_usage(Usage(name="ann")),),
    "power": lambda w: (show_power(w.state.nodes["n0"], "ipmi", None), energy_of(w.state, w.now_s, 800.0)),
    "audit": lambda w: (show_audit(ENTRY, w.state),),
}


@pytest.mark.parametrize("what", sorted(SHOWN))
def test_a_listings_keys_are_the_documented_ones(what: str) -> None:
    assert {key for one in SHOWN[what](world()) for key in one.__struct_fields__} <= keys_of(what)


def test_a_jobs_keys_are_the_documented_ones() -> None:
    w = world()
    table = TEXT.partition("| key | |\n|---|---|\n")[2].partition("\n\n")[0]
    documented = {name for line in table.splitlines() for name in re.findall(r"`([a-z_]+)`", line.split("|")[1])}
    full = show_job_in_full(w.job("1"), w.now_s)
    (task,) = full.tasks

    assert set(show_job(w.job("1")).__struct_fields__) == documented
    assert ({*full.__struct_fields__} - documented) | {
        *task.__struct_fields__,
        *EndedStart.__struct_fields__,
    } == keys_of("show")


def test_a_safeguards_keys_are_the_documented_ones() -> None:
    said = TEXT.partition("A safeguard has ")[2].partition("\n\n")[0]

    assert {*Safeguard.__struct_fields__, *MemoryLimit} == set(re.findall(r"`([a-z_]+)`", said))


def test_every_key_of_a_job_file_is_documented_and_is_one_of_the_manager() -> None:
    table = MANUAL.partition("| key of a job file | |\n|---|---|\n")[2].partition("\n\n")[0]

    documented = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]

    assert len(documented) == len(set(documented))
    assert {job_keys()[name] for name in documented} == set(JobBody.__struct_fields__)


def glimpse(w: World) -> Glimpse:
    sensed = {"n0": Sensed(gpu_busy_pct=3, loans={"b": 4096})}
    return show_overview(replace(Survey(w.state).overview(None), sensed=sensed), w.now_s)


ANSWERED: Mapping[str, Callable[[World], msgspec.Struct]] = {
    "JobInFull": lambda w: show_job_in_full(w.job("1"), w.now_s),
    "Node": lambda w: show_node(w.state.nodes["n0"]),
    "Entry": lambda w: show_entry(ENTRY),
    "Glimpse": glimpse,
    "Reservation": lambda w: show_reservation(w.state.maintenance["m1"], w.state, w.now_s),
    "UsageRow": lambda w: show_usage(Usage(name="ann")),
    "AuditLine": lambda w: show_audit(ENTRY, w.state),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_the_openapi_document_has_the_keys_of_what_is_answered(name: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        document = (await api.as_role(None).get("/v1/openapi.json")).json()
        schema = document["components"]["schemas"][name]
        answered = msgspec.to_builtins(ANSWERED[name](world()))

        jsonschema_rs.validate({**schema, "components": document["components"]}, answered)
        assert list(schema["properties"]) == list(answered)

    api_test(test, tmp_path)
