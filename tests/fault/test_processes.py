"""Real processes killed, replaced and squeezed under a client that checks every byte and takes no error."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from farside.cli.demo.act import until_clients_transmit
from farside.errors import PeerError
from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from tests.support.fio_load import FIO_JOBS, verifying_fio
from tests.support.waiting import until

MIB = 1 << 20
STARTED_S = 60.0  # for fio, on a machine that is busy
SIZES = ("--donors", "3", "--donor-memory", "160MiB", "--size", "256MiB", "--slab", "8MiB")


@pytest.fixture(scope="module", params=["tcp", pytest.param("shm", marks=pytest.mark.long)])
def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A sandbox with a backup disk that the tests of this file share, once with each transport."""
    state = tmp_path_factory.mktemp(f"processes-{request.param}") / "state"
    with open_sandbox((*SIZES, "--transport", request.param), state=state) as session:
        yield session


def status(session: Session) -> Mapping[str, Any]:
    """The borrower's status; waits while its server is being replaced, so that no figure is made up."""

    def look() -> Mapping[str, Any] | None:
        try:
            return control.blockdev_status(session.state)
        except PeerError:
            return None

    told = until(look, what="the borrower's status", deadline_s=20)
    assert told is not None
    return told


def count(session: Session, name: str) -> int:
    """One of the borrower's counters."""
    return int(status(session)["counters"][name])


def slabs_at(session: Session, donor: str) -> int:
    """Slabs that the borrower has at a donor."""
    slabs = status(session)["slabs"]
    return sum(slab["donor"] == donor and slab["state"] == "live" for slab in slabs)


def has_slabs(session: Session, donor: str) -> bool:
    """Whether the borrower has any slab at a donor, those that drain included."""
    return any(slab["donor"] == donor for slab in status(session)["slabs"])


def until_more(session: Session, name: str, before: int) -> None:
    """Returns when a counter of the borrower is above `before`."""
    until(lambda: count(session, name) > before, what=f"more {name}", deadline_s=20)


def until_lends(session: Session, donor: str) -> None:
    """Returns when the donor has lent a slab to the load that runs."""
    until(lambda: slabs_at(session, donor) > 0, what=f"{donor} to lend", deadline_s=20)


def until_up(session: Session, donor: str) -> None:
    """Returns when the borrower may lease from the donor."""
    until(lambda: donor_state(session, donor) == "up", what=f"{donor} to be up", deadline_s=30)


def donor_state(session: Session, name: str) -> str:
    """What the borrower thinks of a donor."""
    return str(donor_told(session, name)["state"])


def donor_told(session: Session, name: str) -> Mapping[str, Any]:
    """What the borrower's status says of a donor."""
    told: Mapping[str, Any] = next(donor for donor in status(session)["donors"] if donor["node"] == name)
    return told


def busiest(session: Session) -> str:
    """The donor that lends most; waits until one lends."""
    names = ("d1", "d2", "d3")
    until(lambda: any(slabs_at(session, name) for name in names), what="a donor to lend", deadline_s=20)
    return max(names, key=lambda name: slabs_at(session, name))


def test_every_donor_in_turn_is_killed_and_restarted_without_an_error(sandbox: Session, tmp_path: Path) -> None:
    with verifying_fio(sandbox.uri, tmp_path) as fio:
        for name in ("d1", "d2", "d3"):
            until_lends(sandbox, name)
            before = count(sandbox, "failovers")
            control.kill_donor(sandbox.state, name)
            until_more(sandbox, "failovers", before)
            control.start_donor(sandbox.state, name)
            until_up(sandbox, name)
            assert fio.poll() is None, "fio ended early"
        assert any(slabs_at(sandbox, name) for name in ("d1", "d2")), "no donor that was killed lends again"


def test_the_server_process_is_replaced_without_an_error(sandbox: Session, tmp_path: Path) -> None:
    with verifying_fio(sandbox.uri, tmp_path) as fio:
        for _ in range(3):
            until_clients_transmit(lambda: status(sandbox), FIO_JOBS, limit_s=STARTED_S)
            before = status(sandbox)
            control.replace(sandbox.state)
            assert_taken_over_once(before, status(sandbox))
            assert fio.poll() is None, "fio ended early"


@pytest.mark.long
def test_the_server_process_is_killed_again_and_again_without_an_error(sandbox: Session, tmp_path: Path) -> None:
    with verifying_fio(sandbox.uri, tmp_path) as fio:
        for _ in range(4):
            until_clients_transmit(lambda: status(sandbox), FIO_JOBS, limit_s=STARTED_S)
            before = status(sandbox)
            until_another_serves(sandbox, control.kill_blockdev(sandbox.state))
            assert_taken_over_once(before, status(sandbox))
            assert fio.poll() is None, "fio ended early"


def until_another_serves(session: Session, pid: int) -> None:
    until(lambda: status(session)["server_pid"] != pid, what="another server process", deadline_s=20)


def assert_taken_over_once(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    assert after["server_pid"] != before["server_pid"]
    assert after["supervisor_pid"] == before["supervisor_pid"]
    assert after["counters"]["takeovers"] == before["counters"]["takeovers"] + 1


@pytest.mark.long
def test_a_squeezed_donors_slabs_move_to_the_others(sandbox: Session, tmp_path: Path) -> None:
    with verifying_fio(sandbox.uri, tmp_path):
        name = busiest(sandbox)
        before, moved = count(sandbox, "migrations"), count(sandbox, "migrated_pages")

        def grow() -> bool:
            control.crowd(sandbox.state, name, 8 * MIB)
            return count(sandbox, "migrations") > before and count(sandbox, "migrated_pages") > moved

        until(grow, what=f"pages of {name} to move", deadline_s=20, every_s=0.1)
    control.squeeze(sandbox.state, name, 0)


def test_a_choked_donors_slabs_go_to_disk_at_once(sandbox: Session, tmp_path: Path) -> None:
    with verifying_fio(sandbox.uri, tmp_path):
        name = busiest(sandbox)
        before = count(sandbox, "evictions")

        control.squeeze(sandbox.state, name, 160 * MIB)

        until_more(sandbox, "evictions", before)
        until(lambda: slabs_at(sandbox, name) == 0, what=f"{name} to have its memory back", deadline_s=20)
    control.squeeze(sandbox.state, name, 0)


@pytest.mark.long
def test_a_donor_that_stops_answering_is_gone_round_and_taken_back(sandbox: Session, tmp_path: Path) -> None:
    with verifying_fio(sandbox.uri, tmp_path) as fio:
        name = busiest(sandbox)
        pid = control.record(sandbox.state).donor(name).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: donor_state(sandbox, name) != "up", what=f"{name} to be suspected", deadline_s=20)
        finally:
            os.kill(pid, signal.SIGCONT)
        until_up(sandbox, name)
        assert fio.poll() is None, "fio ended early"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["delay", "error", "short", "disconnect", "hang"])
def test_a_faulty_donor_set_by_an_operator_costs_no_byte(sandbox: Session, tmp_path: Path, kind: str) -> None:
    socket = Path(control.record(sandbox.state).blockdev.admin_socket)
    with verifying_fio(sandbox.uri, tmp_path) as fio:
        name = busiest(sandbox)

        control.ask(socket, "fault", donor=name, kind=kind, every=200, delay_s=0.02)
        try:
            until(
                lambda: donor_told(sandbox, name)["faults_hit"] > 0, what=f"an operation hit by {kind}", deadline_s=20
            )
        finally:
            control.ask(socket, "fault", donor=name, kind=kind, every=0)
        until_up(sandbox, name)
        assert fio.poll() is None, "fio ended early"


@pytest.mark.long
def test_a_donor_that_damages_pages_is_left_out_until_an_operator_trusts_it(sandbox: Session, tmp_path: Path) -> None:
    """[H1]"""
    socket = Path(control.record(sandbox.state).blockdev.admin_socket)
    with verifying_fio(sandbox.uri, tmp_path) as fio:
        name = busiest(sandbox)

        # Not each operation: a byte that is flipped when it is written and when it is read is right again.
        control.ask(socket, "fault", donor=name, kind="corrupt", every=7)
        until(lambda: status(sandbox)["donors_left_out"] == [name], what=f"{name} to be left out", deadline_s=20)
        control.ask(socket, "fault", donor=name, kind="corrupt", every=0)
        # What it spoilt before counts while its slabs drain, too.
        until(lambda: not has_slabs(sandbox, name), what=f"what {name} has to move", deadline_s=60)
        control.ask(socket, "trust", donor=name)

        until_up(sandbox, name)
        assert status(sandbox)["donors_left_out"] == []
        assert donor_told(sandbox, name)["damaged_pages"] > 3
        assert fio.poll() is None, "fio ended early"


@pytest.mark.long
def test_a_replicated_device_without_a_disk_loses_a_donor_and_no_byte(tmp_path: Path) -> None:
    arguments = (*SIZES, "--replicas", "2", "--transport", "tcp")
    sizes = [word if word != "256MiB" else "128MiB" for word in arguments]
    with open_sandbox(sizes, state=tmp_path / "state") as session, verifying_fio(session.uri, tmp_path) as fio:
        control.kill_donor(session.state, "d1")
        until(lambda: count(session, "failovers") > 0, what="d1 to be given up", deadline_s=20)
        control.start_donor(session.state, "d1")
        until_up(session, "d1")
        assert fio.poll() is None, "fio ended early"


@pytest.mark.long
def test_a_donor_and_the_server_die_at_once_under_replicas(tmp_path: Path) -> None:
    sizes = [word if word != "256MiB" else "128MiB" for word in (*SIZES, "--replicas", "2", "--transport", "tcp")]
    with open_sandbox(sizes, state=tmp_path / "state") as session, verifying_fio(session.uri, tmp_path) as fio:
        until_lends(session, "d1")
        pid = status(session)["server_pid"]
        control.kill_donor(session.state, "d1")
        os.kill(pid, signal.SIGKILL)
        until(lambda: status(session)["server_pid"] != pid, what="another server", deadline_s=30)
        until(lambda: count(session, "failovers") > 0, what="d1 to be given up", deadline_s=30)
        control.start_donor(session.state, "d1")
        until_up(session, "d1")
        assert status(session)["errors"]["pages_lost"] == 0
        assert fio.poll() is None, "fio ended early"
