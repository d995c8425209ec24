"""Each page that a donor spoils under load is counted, and none is read, by TCP and by one-sided RDMA [H1]."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from farside.kmod_shim.engine import binding

ROOT = Path(__file__).parents[2]
LIMIT_S = 1_800.0
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared")


def adapter(folder: Path) -> Path:
    """An RDMA adapter that is a piece of the process which it is preloaded into; skips where none can be made."""
    if "rdma" not in binding.features():
        pytest.skip("the engine was built without rdma-core (Debian: libibverbs-dev, librdmacm-dev)")
    compiler = os.environ.get("CC", "cc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip("no C compiler")
    made = folder / "fake_verbs.so"
    source = ROOT / "tests/engine/fake_verbs.c"
    subprocess.run([*compiler, *FLAGS, str(source), "-o", str(made), "-lpthread"], check=True)
    return made


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(50_000, id="some pages"),
        pytest.param(10_000_000, id="ten million pages", marks=[pytest.mark.long, pytest.mark.timeout(1_900)]),
    ],
)
@pytest.mark.parametrize("transport", ["tcp", pytest.param("rdma", marks=pytest.mark.long)])
def test_every_page_that_a_donor_spoils_under_load_is_counted_and_none_is_read(
    transport: str, pages: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    environment = os.environ | ({"LD_PRELOAD": str(adapter(tmp_path))} if transport == "rdma" else {})
    command = [sys.executable, "-m", "tests.support.spoilt_reads", transport, str(pages), str(tmp_path)]

    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )

    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    record_property("told", told)
    assert told["pages read from the donor"] >= pages
    assert told["pages spoilt"] == told["pages counted as damaged"] > pages / 500
    assert len([way for way in told if way.startswith("donor ")]) == 7, "each way of spoiling"
    # By RDMA pages go past the donor's processes.
    assert (told["reads that the donor's processor served"] == 0) == (transport == "rdma")
    assert (told["connections by RDMA"] > 0) == (transport == "rdma")
