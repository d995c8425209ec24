"""Files replaced as a whole, in folders where others may write [M10]."""

import os
from pathlib import Path

import pytest

from farside.whole_file import lock_file, write_whole


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_what_somebody_put_in_the_way_is_not_written_through(link: object, tmp_path: Path) -> None:
    """[M10] Root wrote a record through a link to a file of another folder."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    assert callable(link)
    link(victim, tmp_path / f".record.{os.getpid()}")

    write_whole(tmp_path / "record", b"new")

    assert victim.read_text() == "as it was"
    assert (tmp_path / "record").read_bytes() == b"new"
    assert not (tmp_path / "record").is_symlink()


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """[M10]"""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (tmp_path / "record").symlink_to(victim)

    write_whole(tmp_path / "record", b"new")

    assert victim.read_text() == "as it was"
    assert (tmp_path / "record").read_bytes() == b"new"


def test_a_file_has_its_mode_whatever_was_in_the_way(tmp_path: Path) -> None:
    """[M10]"""
    (tmp_path / f".record.{os.getpid()}").touch(mode=0o666)

    write_whole(tmp_path / "record", b"secret", mode=0o600)

    assert (tmp_path / "record").stat().st_mode & 0o777 == 0o600


def test_nothing_is_left_behind_by_a_file_that_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()

    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "record", b"new")

    assert list(tmp_path.iterdir()) == [tmp_path / "record"]


def test_a_lock_is_not_made_through_a_link(tmp_path: Path) -> None:
    """[M10]"""
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="symbolic links"):
        lock_file(tmp_path / "lock")

    assert not (tmp_path / "elsewhere").exists()
