"""`farside swap` as a user types it, where there is nothing to attach."""

from pathlib import Path

import pytest

from tests.support.programs import outcome
from tests.support.sandbox import farside


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
