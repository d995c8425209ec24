"""The backup disk: whose it is, and how large."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.blockdev.disk import open_disk
from farside.errors import ConfigError

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[int]:
    """A disk of 1 MiB that this process has opened."""
    fd = open_disk(tmp_path / "disk", MIB)
    yield fd
    os.close(fd)


def test_a_file_that_is_missing_is_made_for_its_owner_and_allocated(disk: int) -> None:
    told = os.fstat(disk)

    assert (told.st_size, told.st_mode & 0o777) == (MIB, 0o600)
    assert told.st_blocks * 512 >= MIB


def test_a_file_with_holes_is_filled_and_keeps_its_size(tmp_path: Path) -> None:
    (tmp_path / "disk").touch()
    os.truncate(tmp_path / "disk", 2 * MIB)

    os.close(open_disk(tmp_path / "disk", MIB))

    told = (tmp_path / "disk").stat()
    assert told.st_size == 2 * MIB
    assert told.st_blocks * 512 >= MIB


def test_a_file_that_is_too_short_is_an_error_and_not_grown(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"precious")

    with pytest.raises(ConfigError, match="has 8 bytes, 1048576 are needed"):
        open_disk(tmp_path / "disk", MIB)

    assert (tmp_path / "disk").read_bytes() == b"precious"


def test_a_file_that_can_not_be_made_large_enough_is_not_left(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bytes are needed"):
        open_disk(tmp_path / "disk", 1 << 62)

    assert not (tmp_path / "disk").exists()


def test_the_lock_lasts_until_the_last_holder_of_the_descriptor_has_ended(tmp_path: Path) -> None:
    first = open_disk(tmp_path / "disk", MIB)
    handed_over = os.dup(first)
    os.close(first)
    with pytest.raises(ConfigError, match="is in use"):
        open_disk(tmp_path / "disk", MIB)

    os.close(handed_over)

    os.close(open_disk(tmp_path / "disk", MIB))
