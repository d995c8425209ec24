"""`farside swap` as a user types it, where there is nothing to attach."""

from pathlib import Path

import pytest

from farside.cli import swap
from farside.errors import ConfigError
from farside.kmod_shim.swap.record import save_record
from farside.units import MIB
from tests.agent.fake_systemd import machine
from tests.support.programs import outcome
from tests.support.sandbox import farside
from tests.swap.test_machine import record


def test_nobody_to_attach_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    ended = outcome(farside("swap", "attach", "--socket", str(tmp_path / "none")))

    assert ended.status == 1
    assert (
        ended.stderr
        == f"farside: {tmp_path}/none: no process answers there; is it running? name its socket with --socket\n"
    )


@pytest.mark.parametrize("words", [["attach", "--device"], ["detach"]])
def test_what_is_no_nbd_device_is_told(words: list[str]) -> None:
    ended = outcome(farside("swap", *words, "/dev/sda"))

    assert ended.status == 2
    assert ended.stderr.startswith("farside: '/dev/sda' is not an nbd device; ")


def test_nothing_attached_is_an_exit_code_of_its_own() -> None:
    ended = outcome(farside("swap", "status"))

    assert (ended.status, ended.stderr) == (3, "")


def test_what_may_go_wrong_stands_in_the_options_names() -> None:
    printed = outcome(farside("swap", "attach", "--help")).stdout

    for option in ("--force-although-the-machine-may-hang", "--force-overwrite", "--force-swap-on-the-same-disk"):
        assert option in "".join(printed.split())


def test_a_size_without_swap_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    ended = outcome(farside("swap", "attach", "--block", "--size", "1GiB", "--socket", str(tmp_path / "none")))

    assert ended.status == 2
    assert ended.stderr.startswith("farside: --size is of swap, and --block attaches without it; ")


def test_what_is_attached_already_is_well_in_the_size_that_is_asked_for_and_in_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(swap, "ROOT", machine(tmp_path / "root", 64 * MIB))
    socket = tmp_path / "b.sock"
    save_record(swap.ROOT, record(export="swap0", admin_socket=str(socket)))
    swaps = swap.ROOT / "proc/swaps"
    swaps.write_text(f"{swaps.read_text()}/dev/nbd0 partition {32 * 1024 - 4} 0 100\n")

    for size in (None, "32MiB"):
        swap.attach(socket=socket, size=size, if_needed=True)
    with pytest.raises(ConfigError, match="its swap is 32 MiB, and --size is 48 MiB"):
        swap.attach(socket=socket, size="48MiB", if_needed=True)

    assert capsys.readouterr().out == "/dev/nbd0: swap0 is attached already\n" * 2
