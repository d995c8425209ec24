"""Key files: made, changed without a gap, never overwritten."""

import stat
from pathlib import Path

import pytest

from farside.cli.keygen import add_key, make_key, retire_key
from farside.daemon.control.keys import read_keys
from farside.errors import ConfigError


def test_a_new_key_file_is_its_owners_only(tmp_path: Path) -> None:
    make_key(tmp_path / "etc" / "key")

    assert stat.S_IMODE((tmp_path / "etc" / "key").stat().st_mode) == 0o600
    assert [len(key) for key in read_keys(tmp_path / "etc" / "key")] == [32]


def test_a_key_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    before = read_keys(tmp_path / "key")

    with pytest.raises(ConfigError, match="exists already; use --add"):
        make_key(tmp_path / "key")

    assert read_keys(tmp_path / "key") == before


def test_a_change_keeps_the_old_key_until_it_is_retired(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    (old,) = read_keys(tmp_path / "key")

    add_key(tmp_path / "key")
    new, kept = read_keys(tmp_path / "key")
    retire_key(tmp_path / "key")

    assert kept == old != new
    assert read_keys(tmp_path / "key") == (new,)
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_two_changes_at_once_are_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    add_key(tmp_path / "key")

    with pytest.raises(ConfigError, match="2 keys already; finish that change first"):
        add_key(tmp_path / "key")


def test_the_last_key_is_not_retired(tmp_path: Path) -> None:
    make_key(tmp_path / "key")

    with pytest.raises(ConfigError, match="one key only"):
        retire_key(tmp_path / "key")
