"""How the engine is built where rdma-core and GnuTLS are, and where they are not."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 900
NEEDED = ("liburing", "libcrypto")

WITHOUT_BOTH = """
import errno, socket
from farside.errors import ConfigError, EngineError
from farside.kmod_shim.engine import _ffi, binding, tls
print(_ffi.__file__, binding.features(), binding.rdma_devices())
ours, theirs = socket.socketpair()
exporter = binding.Exporter()
for attempt in (lambda: binding.RdmaLink(ours.fileno(), 10), lambda: exporter.conn_rdma(1, theirs.fileno())):
    try:
        attempt()
    except EngineError as error:
        assert error.errno == errno.EOPNOTSUPP, error
    else:
        raise AssertionError("there is RDMA")
exporter.destroy()
try:
    tls.Tls({b"n1": bytes(32)})
except ConfigError as error:
    assert "built without GnuTLS; install libgnutls28-dev" in str(error), error
else:
    raise AssertionError("there is TLS")
"""


@pytest.fixture
def bare_machine(tmp_path: Path) -> dict[str, str]:
    """Environment in which pkg-config knows what the engine needs, and neither rdma-core nor GnuTLS."""
    folder = tmp_path / "pkgconfig"
    folder.mkdir()
    for name in NEEDED:
        told = subprocess.run(["pkg-config", "--variable=pcfiledir", name], capture_output=True, text=True, check=True)
        shutil.copy(Path(told.stdout.strip()) / f"{name}.pc", folder)
    return os.environ | {"PKG_CONFIG_LIBDIR": str(folder), "PKG_CONFIG_PATH": ""}


def build(tmp_path: Path, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    folders = ("--build-base", str(tmp_path / "build"), "--build-lib", str(tmp_path / "lib"))
    argv = [sys.executable, "setup.py", "-q", "build", *folders]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)


@pytest.mark.parametrize("name", ["kmod_shim/engine/_ffi.abi3.so", "agent/profile/libfarside-profile.so"])
def test_no_table_of_functions_can_be_written_once_a_module_is_loaded(name: str) -> None:
    """[L7]"""
    if shutil.which("readelf") is None:
        pytest.skip("no readelf here (binutils)")

    told = subprocess.run(["readelf", "-Wdl", ROOT / name], capture_output=True, text=True, check=True).stdout

    assert "BIND_NOW" in told or re.search(r"FLAGS_1.*\bNOW\b", told)
    assert "GNU_RELRO" in told
    assert re.search(r"GNU_STACK .* RW ", told)


def test_the_engine_is_built_with_checked_copies() -> None:
    """[L7] Of a build with sanitizers those check instead."""
    if os.environ.get("FARSIDE_SANITIZE") == "1":
        pytest.skip("a build with sanitizers")
    if shutil.which("readelf") is None:
        pytest.skip("no readelf here (binutils)")
    module = ROOT / "kmod_shim/engine/_ffi.abi3.so"

    told = subprocess.run(["readelf", "-W", "--dyn-syms", module], capture_output=True, text=True, check=True).stdout

    assert "__stack_chk_fail" in told
    assert "_chk@" in told


@pytest.mark.long
def test_without_rdma_core_and_gnutls_the_engine_is_built_and_says_that_it_has_none(
    bare_machine: dict[str, str], tmp_path: Path
) -> None:
    built = build(tmp_path, bare_machine)
    assert built.returncode == 0, built.stderr[-4000:]

    asked = subprocess.run(
        [sys.executable, "-c", WITHOUT_BOTH],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "lib")}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith(str(tmp_path))
    assert asked.stdout.endswith("('uring', 'aes') 0\n")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"FARSIDE_RDMA": "on"}, "apt-get install libibverbs-dev librdmacm-dev"),
        ({"FARSIDE_RDMA": "yes"}, "must be auto, on or off"),
        ({"FARSIDE_TLS": "on"}, "apt-get install libgnutls28-dev"),
        ({"FARSIDE_TLS": "yes"}, "FARSIDE_TLS=yes: must be auto, on or off"),
        ({"FARSIDE_HARDENED": "no"}, "FARSIDE_HARDENED=no: must be 0 or 1"),
    ],
)
def test_a_wish_that_cannot_be_met_ends_the_build_with_the_way_out(
    bare_machine: dict[str, str], tmp_path: Path, wanted: dict[str, str], said: str
) -> None:
    built = build(tmp_path, bare_machine | wanted)

    assert built.returncode != 0
    assert said in built.stderr
