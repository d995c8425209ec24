"""Farside N and N-1: what versions before have recorded (record_version.py) is read, and they would read us.

N-1 reads what we write as long as every field that it knows is there and means what it meant: readers skip fields that
they do not know. So the schemas of then are held against those of now, and nothing but new fields may have come.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farside.agent import messages as m
from farside.agent.protocol import AgentSide, ManagerSide, decode_from_agent, decode_from_manager
from farside.scheduler.manager.model import log_version2 as version2
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.codec import TYPES, decode_event
from farside.scheduler.manager.model.event import VERSION, Entry
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.nodes.donors import DonorRing
from farside.scheduler.manager.view.view import show_job
from tests.live.record_version import MESSAGES
from tests.live.world import World, rules

RECORDED = tuple(sorted((Path(__file__).parent / "recorded").iterdir()))
# N-1 does not read a log of another version; what version 2 wrote of these we read, by log_version2.py or as it is.
READ_AS_VERSION_2 = {*version2.EVENTS, "Gpu", "Donor", "TaskProfiled"}
WORDS_ONLY = ("title", "description")  # what a schema says for people
# Classes that have another name by now: what was recorded, and what is. The log has the old names, or none of them.
RENAMED = {
    "AccessNoted": "AccessRecorded",
    "BrainTookLead": "SchedulerTookLead",
    "JobPlaced": "JobAllocated",
    "JobUnplaced": "AllocationReleased",
    "Place": "NodeAllocation",
    "PowerNote": "NodePowerRecord",
    "TaskPlace": "TaskAllocation",
}


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def before(request: pytest.FixtureRequest) -> Path:
    """What one version recorded, named by its commit."""
    assert isinstance(request.param, Path)
    return request.param


def lines(file: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, file.read_text().splitlines())


def entries(before: Path) -> list[Entry]:
    return [
        Entry(
            seq=row["seq"], at_s=row["at_s"], generation=row["generation"], cause=row["cause"],
            event=decode_event(row["type"], json.dumps(row["body"]), row["version"]),
        )
        for row in lines(before / "log.jsonl")
    ]  # fmt: skip


def hello(before: Path) -> m.Hello:
    found = decode_from_agent(next(lines(before / "frames.jsonl"))["frame"])
    assert isinstance(found, m.Hello)
    return found


# ---- we read what it wrote


def test_a_log_of_the_version_before_gives_the_same_jobs(before: Path) -> None:
    state = LiveState()
    for entry in entries(before):
        apply(state, entry)

    for told in json.loads((before / "jobs.json").read_text()):
        now = msgspec.to_builtins(show_job(state.jobs[told["id"]]))
        assert {key: now[key] for key in told} == told
    assert list(violations(entries(before), is_complete=True)) == []
    assert (state.nodes["n1"].donor, state.nodes["n1"].swap_bytes) == (None, 0)


def test_a_conversation_of_the_version_before_is_understood_by_both_sides(before: Path) -> None:
    ours, theirs = AgentSide(), ManagerSide()
    kinds = set()
    for row in lines(before / "frames.jsonl"):
        if row["from"] == "agent":
            message: m.AgentMessage | m.ManagerMessage = theirs.receive(row["frame"])
            ours.send(decode_from_agent(row["frame"]))
        else:
            message = ours.receive(row["frame"])
            theirs.send(decode_from_manager(row["frame"]))
        kinds.add(type(message).__name__)

    assert kinds >= {"Hello", "Welcome", "Report", "Ack", "Start", "Stop", "Forget", "Probe", "Probed"}


# ---- it reads what we write


def schema(what: str) -> Mapping[str, Any]:
    kinds = MESSAGES if what == "agent" else tuple(TYPES.values())
    found: Mapping[str, Any] = json.loads(json.dumps(msgspec.json.schema_components(kinds)[1]))
    return found


def told_apart(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the old schema would trip over."""
    for name, before in old.items():
        now = new.get(name)
        if now is None:
            yield f"{name} is gone"
            continue
        for key, field in before.get("properties", {}).items():
            if key not in now["properties"]:
                yield f"{name}.{key} is gone"
            elif said(field) != said(now["properties"][key]):
                yield f"{name}.{key} is another: {said(field)} was, {said(now['properties'][key])} is"
        for key in set(now.get("required", ())) - set(before.get("required", ())):
            yield f"{name}.{key} is needed now, and N-1 does not write it"
        if "enum" in before and not set(before["enum"]) <= set(now["enum"]):
            yield f"{name} has lost values"


def said(field: object) -> object:
    return {key: value for key, value in field.items() if key not in WORDS_ONLY} if isinstance(field, dict) else field


def test_nothing_but_new_fields_has_come_to_what_agents_and_managers_say_since_the_version_before(before: Path) -> None:
    old = json.loads((before / "schema.json").read_text())["agent"]

    assert list(told_apart(old, schema("agent"))) == []


def test_nothing_but_new_fields_has_come_to_the_log_but_where_it_is_read_as_of_the_version_before(before: Path) -> None:
    text = re.sub(
        r'(?<=["/])\w+(?=")', lambda name: RENAMED.get(name[0], name[0]), (before / "schema.json").read_text()
    )
    old = json.loads(text)["log"]
    version = max(row["version"] for row in lines(before / "log.jsonl"))

    others = {line.split(" ")[0].split(".")[0] for line in told_apart(old, schema("log"))}

    assert others <= (READ_AS_VERSION_2 if version < VERSION else set())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, ""),
        ({"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}, ""),
        (
            {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a", "b"]},
            "X.b is needed now",
        ),
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, "X.a is another"),
        ({"properties": {}}, "X.a is gone"),
    ],
)
def test_what_would_part_the_versions_is_noticed(change: dict[str, Any], why: str) -> None:
    old = {"X": {"properties": {"a": {"type": "integer", "title": "then"}}, "required": ["a"]}}

    found = list(told_apart(old, {"X": change}))

    assert [line.startswith(why) for line in found] == [True] * bool(why)


def test_an_agent_of_the_version_before_is_told_nothing_that_it_does_not_know(before: Path) -> None:
    known = json.loads((before / "schema.json").read_text())["agent"].keys()
    world = World(rules(), nodes=0)
    line = AgentLine(hello(before), "127.0.0.1")
    for event in line.joined(world.state):
        world.does(event)
    world.submit(1)

    sent = [*line.commands(world.state), *line.donors(world.state, DonorRing(world.state))]

    told = {type(message).__name__ for message in sent}
    assert "Start" in told
    assert told <= known
    assert {"Start", "Stop", "Forget", "Ack", "Welcome"} <= known


def test_the_recorder_knows_every_message_that_there_is() -> None:
    there_are = {kind for kind in vars(m).values() if isinstance(kind, type) and issubclass(kind, m.Message)}

    assert {*MESSAGES} == there_are - {m.Message}


def test_every_message_is_in_a_recording() -> None:
    """Else nothing holds a message that is newer to what it meant; record anew, as record_version.py says."""
    recorded = {name for folder in RECORDED for name in json.loads((folder / "schema.json").read_text())["agent"]}

    assert {kind.__name__ for kind in MESSAGES} <= recorded
