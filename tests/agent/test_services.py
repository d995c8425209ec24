"""Node services: what each says is carried as it is, bounded, and nothing that one does costs the others."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from farside.agent import messages as m
from farside.agent.power_off import why_not
from farside.agent.service.borrower import BorrowerService
from farside.agent.service.donor import DonorSense
from farside.agent.service.service import NodeServices
from tests.agent.frames import start as a_start
from tests.support.virtual_clock import VirtualClock


@dataclass
class Sums:
    """A service for tests, which takes words as orders."""

    name: str = "sums"
    version: int = 2
    said: bytes = b"{}"
    is_drained: bool = True
    orders: list[str] = field(default_factory=list)
    is_closed: bool = False
    problem: str = ""

    def facts(self) -> bytes:
        return self.said

    def obey(self, order: Raw) -> None:
        self.orders.append(msgspec.json.decode(order, type=str))

    def metrics(self) -> Mapping[str, float]:
        return {"sums": 3.0}

    def drained(self) -> bool:
        return self.is_drained

    def unfit(self) -> str:
        return self.problem

    def variables(self, start: m.Start) -> Mapping[str, str]:
        return {"SUMS_SOCKET": f"/run/sums/{start.task_id}-{start.start}"}

    async def close(self) -> None:
        self.is_closed = True


def order(epoch: int, text: object, *, generation: int = 1, name: str = "sums") -> m.Service:
    return m.Service(name=name, epoch=epoch, generation=generation, raw=Raw(msgspec.json.encode(text)))


def test_services_say_their_names_and_versions() -> None:
    assert NodeServices([Sums(), Sums(name="other", version=1)]).can == (
        "service:sums", "service:sums:2", "service:other",
    )  # fmt: skip


@given(st.lists(st.integers(2, m.SERVICE_BYTES_MAX + 2) | st.just(0), max_size=m.SERVICES_MAX))
def test_what_is_too_long_or_no_json_is_left_out_and_the_rest_is_said(sizes: list[int]) -> None:
    # A JSON text of so many bytes; 0 stands for what is none.
    said = {f"s{at}": b'"%s"' % (b"x" * (size - 2)) if size else b'{"half' for at, size in enumerate(sizes)}
    services = NodeServices([Sums(name=name, said=text) for name, text in said.items()])

    found = services.facts()

    assert all(bytes(raw) == said[name] for name, raw in found.items())
    assert sum(len(bytes(raw)) for raw in found.values()) <= m.SERVICES_BYTES_MAX
    assert services.faults == {name: 1 for name in said if name not in found}
    fit = [name for name, text in said.items() if text != b'{"half' and len(text) <= m.SERVICE_BYTES_MAX]
    if sum(len(said[name]) for name in fit) <= m.SERVICES_BYTES_MAX:
        assert [*found] == fit


def test_an_order_that_is_older_than_the_last_is_ignored_and_one_that_comes_again_is_not() -> None:
    sums = Sums()
    services = NodeServices([sums])
    for told in (order(5, "a"), order(5, "a"), order(4, "old"), order(6, "b"), order(1, "of the next", generation=2)):
        services.obey(told)

    assert sums.orders == ["a", "a", "b", "of the next"]


def test_an_order_that_nobody_understands_is_counted_and_the_next_is_obeyed() -> None:
    sums = Sums()
    services = NodeServices([sums])
    for told in (order(1, {"no": "word"}), order(2, "a", name="unknown"), order(1, "b")):
        services.obey(told)

    assert sums.orders == ["b"]
    assert services.faults == {"sums": 1, "unknown": 1}


def test_the_node_holds_something_as_long_as_one_of_its_services_does() -> None:
    sums = Sums(is_drained=False)
    services = NodeServices([sums, Sums(name="other")])
    off = m.PowerOff(closed_by=7, generation=1)

    assert services.holding() == ("sums",)
    assert "sums" in why_not(off, closed_by=7, has_tasks=False, holding=services.holding())
    sums.is_drained = True
    assert why_not(off, closed_by=7, has_tasks=False, holding=services.holding()) == ""


def test_the_node_takes_nothing_new_while_one_of_its_services_says_why() -> None:
    broken = Sums(name="other", problem="its disk is gone")
    services = NodeServices([Sums(), broken])
    before = services.unfit()
    broken.problem = ""

    assert (before, services.unfit()) == ("its disk is gone", "")


def test_a_task_gets_what_it_needs_to_reach_its_services_and_all_end_with_the_agent() -> None:
    sums = Sums()
    services = NodeServices([sums])

    assert services.variables(a_start("7.0")) == {"SUMS_SOCKET": "/run/sums/7.0-1"}
    assert services.metrics() == {"sums": {"sums": 3.0}}
    asyncio.run(services.close())
    assert sums.is_closed


def test_donor_and_borrower_say_what_hello_says_to_managers_that_know_no_services(tmp_path: Path) -> None:
    clock, swap = VirtualClock(), m.Swap(size_bytes=5, used_bytes=3, own_bytes=1)
    donor = DonorSense(None, control="", clock=clock)
    borrower = BorrowerService(tmp_path / "peers.toml", swap=lambda: swap, clock=clock)
    services = NodeServices([donor, borrower])
    address = m.DonorAddress(node="d1", control="tcp:10.0.0.1:7677")

    services.obey(order(1, m.DonorOrder(closed_by=4, deadline_s=9.0), name="donor"))
    services.obey(order(1, m.BorrowerOrder(donors=(address,)), name="borrower"))
    asyncio.run(donor.read())

    said = services.facts()
    assert msgspec.json.decode(said["donor"], type=m.DonorFacts) == m.DonorFacts(drained=m.Drained(number=4, slabs=0))
    assert msgspec.json.decode(said["borrower"], type=m.BorrowerFacts) == m.BorrowerFacts(swap=swap)
    assert services.metrics()["borrower"] == {"swap_bytes": 5, "swap_used_bytes": 3, "donors": 1}
    assert (services.faults, services.holding()) == ({}, ())
    assert "10.0.0.1" in (tmp_path / "peers.toml").read_text()
