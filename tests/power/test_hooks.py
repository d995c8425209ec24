"""The site's own program, and the switch that only pretends."""

import asyncio
import dataclasses
import logging
from pathlib import Path

import pytest

from farside.errors import PeerError, Unavailable
from farside.scheduler.power.driver.command import CommandDriver
from farside.scheduler.power.driver.dry_run import DryRunDriver
from farside.scheduler.power.driver.run_program import MAX_OUTPUT, run_program
from farside.scheduler.power.state import Power
from tests.support.waiting import text_of, until

_STRIP = """#!/bin/sh
state=$(dirname "$0")/$2
case $1 in
  on|off) echo "$1" >"$state" ;;
  soft-off) echo off >"$state" ;;
  status) cat "$state" ;;
  reading) [ "$(cat "$state")" = on ] && echo 750.5; exit 0 ;;
  *) echo "what is $1?" >&2; exit 3 ;;
esac
"""


def hook(folder: Path, text: str) -> CommandDriver:
    program = folder / "strip.sh"
    program.write_text(text)
    program.chmod(0o755)
    return CommandDriver(node="node7", program=(str(program),), limit_s=60.0)


def test_a_hook_is_switched_and_asked(tmp_path: Path) -> None:
    strip = hook(tmp_path, _STRIP)

    async def story() -> list[object]:
        said: list[object] = []
        for action in (strip.on, strip.soft_off, strip.on, strip.off):
            await action()
            said += [await strip.status(), await strip.reading_w()]
        return said

    assert asyncio.run(story()) == [Power.ON, 750.5, Power.OFF, None, Power.ON, 750.5, Power.OFF, None]


def test_a_failed_hook_tells_its_own_reason(tmp_path: Path) -> None:
    strip = hook(tmp_path, "#!/bin/sh\necho 'outlet 7 is locked' >&2\nexit 1\n")

    with pytest.raises(PeerError, match=r"node7: .*strip\.sh on failed: outlet 7 is locked; run it by hand"):
        asyncio.run(strip.on())


@pytest.mark.parametrize(("said", "call"), [("maybe", "status"), ("warm", "reading_w"), ("-4", "reading_w")])
def test_what_a_hook_prints_must_make_sense(tmp_path: Path, said: str, call: str) -> None:
    strip = hook(tmp_path, f"#!/bin/sh\necho {said}\n")

    with pytest.raises(PeerError, match=f"says '{said}'"):
        asyncio.run(getattr(strip, call)())


def test_a_hook_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    strip = hook(tmp_path, '#!/bin/sh\nsleep 600 &\necho $! >"$(dirname "$0")/child"\nwait\n')

    with pytest.raises(PeerError, match="has not ended in 1 s"):
        asyncio.run(dataclasses.replace(strip, limit_s=1.0).on())

    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    until(lambda: text_of(child).split()[2:3] in ([], ["Z"]), what="the hook's child is gone")


def test_a_hook_that_is_not_there_says_so() -> None:
    with pytest.raises(Unavailable, match="no-such-hook: No such file"):
        asyncio.run(CommandDriver(node="node7", program=("/no-such-hook",)).on())


def test_a_program_that_says_too_much_is_cut_and_not_blocked() -> None:
    done = asyncio.run(run_program(["head", "-c", "1000000", "/dev/zero"], limit_s=20.0))

    assert done.status == 0
    assert len(done.stdout) == MAX_OUTPUT


def test_a_dry_run_says_what_it_would_do_and_plays_along(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="farside.scheduler.power")
    switch = DryRunDriver("node7")

    asyncio.run(switch.soft_off())

    assert asyncio.run(switch.status()) is Power.OFF
    assert "would switch" in caplog.text
