"""A manager's HTTP against requests that nobody has tried before: schemathesis, as long as the other targets run."""

import time
from pathlib import Path

import pytest

from tests.fuzz.test_fuzz_nbd import FUZZ_S
from tests.live.manager import Manager
from tests.live.test_api_contract import LIMIT_S, asked, manager

__all__ = ["manager"]

ROUND_EXAMPLES = 10


@pytest.mark.long
def test_no_request_upsets_the_manager(manager: Manager, tmp_path: Path) -> None:
    until_s = time.monotonic() + FUZZ_S
    while True:
        seed = time.time_ns() % 2**32

        how = ("--max-examples", str(ROUND_EXAMPLES), "--seed", str(seed))
        done = asked(manager, tmp_path, *how, limit_s=LIMIT_S + FUZZ_S)

        assert done.returncode == 0, f"--seed {seed}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in manager.log()
        if time.monotonic() >= until_s:
            break
