"""A change of the cluster's key, from `keygen --add` to `keygen --retire`, while everybody goes on working."""

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from farside.cli.keygen import add_key, make_key, retire_key
from farside.daemon.control import messages as m
from farside.daemon.control.keys import KeyRing, read_keys
from farside.daemon.control.protocol import Connection, Side
from farside.errors import ConfigError, PeerError
from tests.daemon.plane import KEY, Plane, running

MACHINES = ("donor", "b1", "b2")


async def connects(plane: Plane, node: str, keys: tuple[bytes, ...]) -> None:
    """Raises PeerError when the donor does not let this borrower in."""
    connection = Connection(side=Side.BORROWER, keys=keys, nonce=os.urandom(32), node=node)
    channel = plane.channel(connection)
    try:
        await channel.open()
    finally:
        channel.close()


@pytest.mark.parametrize("first", MACHINES)
def test_a_key_is_changed_with_no_process_restarted_and_no_moment_without_a_common_key(
    tmp_path: Path, first: str
) -> None:
    async def scenario() -> None:
        plane = Plane(tmp_path)
        files = {"donor": tmp_path / "key"}
        for node in ("b1", "b2"):
            (tmp_path / node).mkdir()
            files[node] = Path(shutil.copy(files["donor"], tmp_path / node / "key"))
        rings = {node: KeyRing(files[node]) for node in ("b1", "b2")}

        async def all_connect() -> None:
            for node, ring in rings.items():
                await connects(plane, node, ring.current())

        async with running(plane):
            borrower = await plane.borrower()
            (lease,) = await borrower.map()
            for change in (add_key, retire_key):
                change(files[first])
                await all_connect()
                for machine in MACHINES:
                    if machine != first:
                        shutil.copy(files[first], files[machine])
                        await all_connect()

            with pytest.raises(PeerError, match="no common key"):
                await connects(plane, "b1", (KEY,))
            assert isinstance(await borrower.ask(m.KeepAlive()), m.FreeMem)
            assert list(plane.exporter.leases) == [lease.lease]

    asyncio.run(scenario())


def test_a_key_file_that_became_unusable_leaves_the_keys_of_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        plane = Plane(tmp_path)
        async with running(plane):
            (tmp_path / "key").write_text("half a ke")

            await connects(plane, "b1", (KEY,))

    asyncio.run(scenario())


def test_a_key_that_can_not_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match="No space left on device"):
            make_key(tmp_path / "key")

    make_key(tmp_path / "key")
    assert len(read_keys(tmp_path / "key")) == 1


def test_a_change_while_the_file_is_read_for_the_first_time_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = b"o" * 32, b"n" * 32
    path = tmp_path / "key"
    path.write_text(old.hex())
    path.chmod(0o600)
    close = os.close

    def change_and_close(fd: int) -> None:
        close(fd)
        path.write_text(f"{new.hex()}\n{old.hex()}\n")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", change_and_close)
        ring = KeyRing(path)

    assert ring.current() == (new, old)
