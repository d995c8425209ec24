"""Every key of a listing's JSON is in docs/manager.md, and every key there is in the JSON."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from farside.scheduler.live.audit import show_audit
from farside.scheduler.live.event import CancelRequested, Entry, NodesReserved
from farside.scheduler.live.power.show import energy_of, show_energy, show_power
from farside.scheduler.live.usage import Usage, show_usage
from farside.scheduler.live.view import show_job, show_job_in_full, show_node, show_reservation
from tests.live.world import World, rules

TEXT = (Path(__file__).parents[2] / "docs/manager.md").read_text().partition("## Keys of `--json`")[2]


def world() -> World:
    made = World(rules(), nodes=1)
    made.submit()
    made.does(NodesReserved(nodes=("n0",), begin_s=5000.0, end_s=6000.0, reason="", by="root"))
    return made


def keys_of(what: str) -> set[str]:
    """Names in backticks in what is said of ``what --json``, up to the next empty line."""
    said = TEXT[TEXT.rindex(f"`{what} --json`") :].partition("\n\n")[0]
    return set(re.findall(r"`([a-z_]+)`", said))


SHOWN: dict[str, Callable[[World], Mapping[str, object]]] = {
    "nodes": lambda w: show_node(w.state.nodes["n0"]),
    "reservations": lambda w: show_reservation(w.state.maintenance["m1"], w.state, w.now_s),
    "usage": lambda w: show_usage(Usage(name="ann")),
    "power": lambda w: {
        **show_power(w.state.nodes["n0"], "ipmi", None),
        **show_energy(energy_of(w.state, w.now_s, 800.0)),
    },
    "audit": lambda w: show_audit(
        Entry(seq=1, at_s=0.0, generation=0, cause="user ann", event=CancelRequested(job_id="1", by="ann")), w.state
    ),
}


@pytest.mark.parametrize("what", sorted(SHOWN))
def test_a_listings_keys_are_the_documented_ones(what: str) -> None:
    assert set(SHOWN[what](world())) <= keys_of(what)


def test_a_jobs_keys_are_the_documented_ones() -> None:
    w = world()
    table = TEXT.partition("| key | |\n|---|---|\n")[2].partition("\n\n")[0]
    documented = {name for line in table.splitlines() for name in re.findall(r"`([a-z_]+)`", line.split("|")[1])}
    full = show_job_in_full(w.job("1"), w.now_s)
    (task,) = msgspec.convert(full["tasks"], list[dict[str, object]])

    assert set(show_job(w.job("1"))) == documented
    assert (set(full) - documented) | set(task) == keys_of("show")
