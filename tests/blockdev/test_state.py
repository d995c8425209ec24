"""The control state file, cut off at every moment."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farside.blockdev.state import StateFile

SIZE = 1 << 20


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("control")
    os.truncate(made, SIZE)
    yield made
    os.close(made)


def test_a_new_file_holds_nothing(fd: int) -> None:
    assert StateFile(fd).read() is None


def test_another_process_reads_what_was_written_last(fd: int) -> None:
    file = StateFile(fd)

    for value in (b"one", b"two", b"three"):
        file.write(value)

    assert StateFile(fd).read() == b"three"


def test_writing_goes_on_behind_what_was_there(fd: int) -> None:
    StateFile(fd).write(b"one")

    StateFile(fd).write(b"two")

    assert StateFile(fd).read() == b"two"


def test_what_does_not_fit_leaves_the_old_value(fd: int) -> None:
    file = StateFile(fd)
    file.write(b"one")

    with pytest.raises(OSError, match="does not fit"):
        file.write(bytes(SIZE))

    assert file.read() == b"one"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=64), st.integers(0, SIZE - 1), st.binary(min_size=1, max_size=200))
def test_a_torn_write_leaves_the_value_before(fd: int, value: bytes, at: int, junk: bytes) -> None:
    os.truncate(fd, 0)
    os.truncate(fd, SIZE)
    file = StateFile(fd)
    file.write(b"before")
    other_half = (2 & 1) * SIZE // 2

    os.pwrite(fd, junk, other_half + at % (SIZE // 2 - len(junk)))

    assert StateFile(fd).read() == b"before"
