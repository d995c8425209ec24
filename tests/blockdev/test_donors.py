"""All donors of the peers file: who joins, who leaves, and who comes back another way."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from farside.blockdev.donor import donors as donors_module
from farside.blockdev.donor.donors import DonorList
from farside.blockdev.peers_file import DonorAddress, read_peers
from farside.blockdev.task import Tasks
from farside.config.peers_text import peers_text
from farside.errors import ConfigError
from tests.blockdev.test_donor import Scene, until


class Cast:
    """A device's donors over the scene's parts; none of them answers."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder, transport="auto", grace_s=60.0)
        self.table = self.scene.table
        self.hooks = self.scene.recorder
        self.file = folder / "peers.toml"
        self.table.forget_donor("d1")

    def name(self, owners: Mapping[str, str] = MappingProxyType({}), **donors: str) -> None:
        """Writes the peers file."""
        new = self.file.with_suffix(".new")
        new.write_text(peers_text(donors, owners))
        new.rename(self.file)

    def lend(self, node: str, *, control: str = "") -> int:
        """A slab of the donor; returns the donor's number."""
        record = self.table.donor(node)
        record.control, record.session = control or record.control, 1
        self.table.add_slab(donor=record.donor, lease=len(self.table.slabs), token=1, epoch=1, region=0)
        return record.donor

    def seen(self, donors: DonorList) -> dict[str, tuple[str, bool]]:
        return {donor.address.node: (donor.address.control, donor.retired) for donor in donors.all()}


@pytest.fixture
def cast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cast:
    monkeypatch.setattr(donors_module, "WATCH_PERIOD_S", 0.01)
    made = Cast(tmp_path)
    object.__setattr__(made.scene.parts.config, "peers_file", made.file)
    return made


def play(cast: Cast, body: Callable[[DonorList], Coroutine[object, object, None]]) -> None:
    async def live() -> None:
        async with Tasks() as tasks:
            donors = DonorList(cast.scene.parts, tasks)
            donors.start()
            await asyncio.sleep(0)  # its tasks begin
            await body(donors)
            await asyncio.sleep(0)

    asyncio.run(live())


def test_a_donor_that_moves_to_another_port_is_followed_at_once(cast: Cast) -> None:
    cast.name(d1="tcp:127.0.0.1:1")

    async def body(donors: DonorList) -> None:
        cast.lend("d1")
        cast.name(d1="tcp:127.0.0.1:2")
        await until(lambda: cast.seen(donors) == {"d1": ("tcp:127.0.0.1:2", False)})

    play(cast, body)

    assert cast.hooks.retired == []


def test_a_donor_that_changes_its_kind_of_address_leaves_before_it_joins_again(cast: Cast) -> None:
    cast.name(d1="unix:/nowhere")

    async def body(donors: DonorList) -> None:
        donor = cast.lend("d1")
        cast.name(d1="tcp:127.0.0.1:1")
        await until(lambda: cast.seen(donors) == {"d1": ("unix:/nowhere", True)})
        assert cast.hooks.retired == [donor]
        assert cast.hooks.lost == []
        cast.table.drop_slab(0)
        await until(lambda: cast.seen(donors) == {"d1": ("tcp:127.0.0.1:1", False)})

    play(cast, body)


def test_a_successor_moves_off_a_donor_that_has_left_the_file(cast: Cast) -> None:
    cast.name(d2="tcp:127.0.0.1:1")
    gone = cast.lend("d1", control="tcp:127.0.0.1:2")

    async def body(donors: DonorList) -> None:
        assert cast.seen(donors) == {"d1": ("tcp:127.0.0.1:2", True), "d2": ("tcp:127.0.0.1:1", False)}

    play(cast, body)

    assert cast.hooks.retired == [gone]
    assert cast.hooks.lost == []


def test_a_slab_of_a_leaving_donor_that_stayed_is_moved_later(cast: Cast) -> None:
    cast.name()
    cast.lend("d1", control="tcp:127.0.0.1:2")

    async def body(donors: DonorList) -> None:
        cast.lend("d1")
        await until(lambda: len(cast.hooks.retired) == 2)

    play(cast, body)


def test_one_look_that_goes_wrong_is_not_the_last(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    cast.name(d1="tcp:127.0.0.1:1")

    async def body(donors: DonorList) -> None:
        real, calls = cast.table.save, 0

        def save() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise OSError(28, "no room")
            real()

        monkeypatch.setattr(cast.table, "save", save)
        cast.name(d1="tcp:127.0.0.1:1", d2="tcp:127.0.0.1:2")
        await until(lambda: set(cast.seen(donors)) == {"d1", "d2"})

    play(cast, body)


def test_a_file_that_could_not_be_used_is_looked_at_again(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    cast.name(d1="unix:/nowhere")
    refusals: list[Path] = []

    def once(path: Path) -> tuple[DonorAddress, ...]:
        if refusals:
            return read_peers(path)
        refusals.append(path)
        raise ConfigError(f"{path}: Permission denied")

    async def body(donors: DonorList) -> None:
        monkeypatch.setattr(donors_module, "read_peers", once)
        cast.name(d1="unix:/nowhere", d2="unix:/nowhere/else")
        await until(lambda: "d2" in cast.seen(donors))

    play(cast, body)

    assert refusals == [cast.file]


def test_a_donor_that_gives_damaged_pages_again_and_again_is_left_out_until_an_operator_trusts_it(cast: Cast) -> None:
    """[H1]"""
    at = "tcp:127.0.0.1:1"
    cast.name(d1=at, d2=at)

    async def body(donors: DonorList) -> None:
        number = cast.lend("d1")
        for _ in range(3):
            donors.gave_damaged("d1")
        assert cast.seen(donors) == {"d1": (at, False), "d2": (at, False)}

        donors.gave_damaged("d1")

        assert cast.seen(donors) == {"d1": (at, True), "d2": (at, False)}
        assert cast.hooks.retired == [number]
        (slab,) = cast.table.slabs_of(number)
        cast.table.drop_slab(slab.slab)
        await until(lambda: cast.seen(donors) == {"d2": (at, False)})
        again = DonorList(cast.scene.parts, donors._tasks)  # a successor, which reads the same table
        again.start()
        assert cast.seen(again) == {"d2": (at, False)}

        donors.trust("d1")

        assert cast.seen(donors) == {"d1": (at, False), "d2": (at, False)}
        with pytest.raises(ConfigError, match="no donor 'd1' is left out; `farside status` shows those that are"):
            donors.trust("d1")

    play(cast, body)

    assert cast.table.damaged_pages == {"d1": 4}


def test_a_donor_that_is_left_out_does_not_come_back_under_another_name_of_its_node(cast: Cast) -> None:
    """[H1] A donor says its own name; whose it is the manager knows by the token of the node's agent."""
    at = "tcp:127.0.0.1:1"
    cast.name({"lender": "n1"}, lender=at)

    async def body(donors: DonorList) -> None:
        cast.lend("lender", control=at)
        for _ in range(2):
            donors.gave_damaged("lender")
        cast.name({"lender-a": "n1"}, **{"lender-a": at, "d2": at})
        donors.look(cast.file)
        cast.lend("lender-a", control=at)
        again = DonorList(cast.scene.parts, donors._tasks)  # a successor knows whose both are, the one that left too
        again.start()
        assert cast.seen(again) == {"lender": (at, True), "lender-a": (at, False), "d2": (at, False)}
        for name in ("lender", "lender", "lender-a", "lender"):
            again.gave_damaged(name)
        assert cast.seen(again)["lender-a"] == (at, True)

        cast.name({"lender-b": "n1"}, **{"lender-b": at, "d2": at})
        again.look(cast.file)

        assert "lender-b" not in cast.seen(again)
        assert cast.table.distrusted == {"n1"}
        again.trust("n1")
        assert cast.seen(again)["lender-b"] == (at, False)

    play(cast, body)

    assert cast.table.damaged_pages == {"n1": 6}
