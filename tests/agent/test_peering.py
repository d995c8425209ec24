"""Which donors a borrower has: what the manager says, what it said before, and the file that both end in."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from farside.agent.messages import DonorAddress
from farside.agent.peering import HOLD_S, KNOWN_MAX, Known, merged
from farside.agent.peers_file import PeersFile
from farside.blockdev.peers_file import DonorAddress as ReadAddress
from farside.blockdev.peers_file import read_peers


def at(name: str, control: str = "") -> DonorAddress:
    return DonorAddress(node=name, control=control or f"tcp:{name}:7677")


def names(known: tuple[Known, ...]) -> list[str]:
    return [one.address.node for one in known]


def test_who_is_new_or_has_moved_is_taken_at_once() -> None:
    known = merged((), [at("d1"), at("d2")], 0.0)

    after = merged(known, [at("d1"), at("d2", "tcp:10.0.0.9:1"), at("d3")], 1.0)

    assert [one.address for one in after] == [at("d1"), at("d2", "tcp:10.0.0.9:1"), at("d3")]


def test_who_is_left_out_stays_for_a_while_and_then_goes() -> None:
    known = merged(merged((), [at("d1"), at("d2")], 0.0), [at("d1")], 100.0)

    assert names(merged(known, [at("d1")], 100.0 + HOLD_S - 1)) == ["d1", "d2"]
    assert names(merged(known, [at("d1")], 100.0 + HOLD_S)) == ["d1"]


def test_who_comes_back_has_never_been_away() -> None:
    known = merged(merged((), [at("d1")], 0.0), [], 100.0)

    back = merged(known, [at("d1")], 200.0)

    assert names(merged(back, [], 200.0 + HOLD_S)) == ["d1"]


def test_another_machines_unix_socket_is_no_donor_here() -> None:
    assert merged((), [at("d1", "unix:/run/d1.sock"), at("d2", "nonsense")], 0.0) == ()


def test_there_are_never_more_than_a_borrower_can_have_and_those_told_of_go_before() -> None:
    old = merged((), [at(f"old{number}") for number in range(KNOWN_MAX)], 0.0)
    told = [at(f"new{number}") for number in range(64)]

    after = merged(old, told, 1.0)

    assert len(after) == KNOWN_MAX
    assert {one.node for one in told} <= set(names(after))


lists = st.lists(st.integers(0, 9), unique=True, max_size=10).map(lambda found: [at(f"d{one}") for one in found])


@given(st.lists(st.tuples(lists, st.floats(0, HOLD_S)), max_size=20))
def test_no_donor_goes_that_was_told_of_within_the_hold(history: list[tuple[list[DonorAddress], float]]) -> None:
    known: tuple[Known, ...] = ()
    now_s, last_s = 0.0, dict[str, float]()
    for told, passed_s in history:
        now_s += passed_s
        known = merged(known, told, now_s)
        last_s |= {one.node: now_s for one in told}

        assert {one.node for one in told} <= set(names(known))
        assert {name for name, told_s in last_s.items() if now_s - told_s < HOLD_S} <= set(names(known))
        assert names(known) == sorted(set(names(known)))


# ---- the file


def test_the_file_is_there_from_the_start_and_the_borrower_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"

    file = PeersFile(path)
    empty = read_peers(path)
    file.take([at("d1"), at("d2", "tcp:[fe80::1]:7677")], 0.0)

    assert empty == ()
    assert read_peers(path) == (
        ReadAddress(node="d1", control="tcp:d1:7677"), ReadAddress(node="d2", control="tcp:[fe80::1]:7677"),
    )  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_borrower_reads_to_whom_a_donor_belongs_and_after_a_restart_too(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    mine = DonorAddress(node="lender", control="tcp:h:1", owner="n2")
    PeersFile(path).take([mine, at("d1")], 0.0)

    PeersFile(path).take([at("d1"), at("d2")], 1.0)  # it writes the file anew, with those that it holds

    assert [(one.node, one.owner) for one in read_peers(path)] == [("d1", ""), ("d2", ""), ("lender", "n2")]


def test_without_a_manager_what_it_said_last_stands(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    PeersFile(path).take([at("d1"), at("d2")], 0.0)

    after = PeersFile(path)

    assert after.donors == 2
    assert len(read_peers(path)) == 2
    after.take([at("d2")], 5.0)  # its first list after a restart: d1 is held from now on
    assert len(read_peers(path)) == 2


def test_the_file_is_left_alone_while_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    file = PeersFile(path)
    file.take([at("d1")], 0.0)
    before = path.stat()

    file.take([at("d1")], 1.0)

    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_folder_that_is_not_there_is_a_problem_until_it_is(tmp_path: Path) -> None:
    path = tmp_path / "later" / "peers.toml"
    file = PeersFile(path)

    file.take([at("d1")], 0.0)
    problem = file.problem
    path.parent.mkdir()
    file.take([at("d1")], 1.0)

    assert "No such file" in problem
    assert (file.problem, len(read_peers(path))) == ("", 1)


def test_a_damaged_file_is_replaced_by_what_the_manager_says(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    path.write_text("[[donor]\nnode=")

    PeersFile(path).take([at("d1")], 0.0)

    assert len(read_peers(path)) == 1
