"""Credentials of a real munged: what they prove, and what is said of those that prove nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.munge import Fault, MungeError, make_credential, open_credential, request_mark
from tests.support.munge import munged
from tests.support.waiting import until


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with munged(tmp_path_factory.mktemp("munge")) as made:
        yield made


def test_a_credential_says_who_made_it_and_what_it_holds(socket: Path) -> None:
    opened = open_credential(make_credential(b"a\0b", socket), socket)

    assert (opened.uid, opened.payload) == (os.geteuid(), b"a\0b")


def test_a_credential_may_hold_nothing(socket: Path) -> None:
    assert open_credential(make_credential(b"", socket), socket).payload == b""


def test_a_credential_is_good_once(socket: Path) -> None:
    credential = make_credential(b"x", socket)
    open_credential(credential, socket)

    with pytest.raises(MungeError, match="was used before; each is good for one request") as caught:
        open_credential(credential, socket)
    assert caught.value.fault is Fault.REPLAYED


@pytest.mark.parametrize("credential", ["", "MUNGE:", "MUNGE:AAAA:", "x" * 5000, "MUNGE:%%%:"])
def test_what_is_no_credential_is_refused(credential: str, socket: Path) -> None:
    with pytest.raises(MungeError, match="munge: this credential "):
        open_credential(credential, socket)


def test_a_credential_that_was_changed_is_refused(socket: Path) -> None:
    credential = make_credential(b"x", socket)
    middle = len(credential) // 2
    other = "A" if credential[middle] != "A" else "B"

    with pytest.raises(MungeError):
        open_credential(credential[:middle] + other + credential[middle + 1 :], socket)


def test_a_credential_of_another_key_is_refused_with_what_to_do(socket: Path, tmp_path: Path) -> None:
    with munged(tmp_path) as foreign, pytest.raises(MungeError, match=r"another key; /etc/munge/munge.key must be the"):
        open_credential(make_credential(b"x", foreign), socket)


def test_a_credential_that_is_too_old_is_refused_with_how_old_it_is(tmp_path: Path) -> None:
    with munged(tmp_path, "--max-ttl=1") as hasty:
        unused = [make_credential(b"x", hasty) for _ in range(40)]
        until(lambda: fault_of(unused.pop(), hasty) is Fault.EXPIRED, what="an old credential", every_s=0.25)

        with pytest.raises(MungeError, match=r"is too old, by \d+ s; .* clocks are apart"):
            open_credential(unused.pop(), hasty)


def fault_of(credential: str, socket: Path) -> Fault | None:
    try:
        open_credential(credential, socket)
    except MungeError as error:
        return error.fault
    return None


def test_a_munged_that_is_not_there_is_one_line_with_what_to_do(tmp_path: Path, socket: Path) -> None:
    with pytest.raises(MungeError, match=r"munged at .*/none does not answer; systemctl start munge") as caught:
        make_credential(b"x", tmp_path / "none")
    assert caught.value.fault is Fault.SOCKET


@given(
    st.tuples(*[st.text(max_size=5)] * 3, st.binary(max_size=5)),
    st.tuples(*[st.text(max_size=5)] * 3, st.binary(max_size=5)),
)
def test_two_requests_have_the_same_mark_only_if_they_are_the_same(
    one: tuple[str, str, str, bytes], other: tuple[str, str, str, bytes]
) -> None:
    if any("\n" in part for part in (*one[:3], *other[:3])):  # HTTP has none there
        return
    assert (request_mark(*one) == request_mark(*other)) == (one == other)
