"""`farside daemon` as a process: with the real engine, from its start to its end."""

import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from farside import admin
from farside.errors import PeerError
from tests.daemon.plane import KEY
from tests.support.memory_flags import flags_of
from tests.support.ports import free_port
from tests.support.waiting import until

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")


def write_config(folder: Path, **more: str) -> Path:
    key = folder / "key"
    key.write_text(KEY.hex())
    key.chmod(0o600)
    settings = {
        "node": "d1",
        "key_file": str(key),
        "slab_bytes": "2MiB",
        "admin_socket": str(folder / "admin.sock"),
        **more,
    }
    lines = [f"{name} = {value!r}" for name, value in settings.items()]
    config = folder / "daemon.toml"
    config.write_text("\n".join([f"listen = ['unix:{folder}/donor.sock']", *lines]) + "\n")
    return config


@contextmanager
def daemon(config: Path, *, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A donor. What it says is in ``log``, or in a pipe, which has room for the lines of some 300 borrowers."""
    argv = [sys.executable, "-m", "farside", "daemon", "--config", str(config)]
    with (
        nullcontext(subprocess.PIPE) if log is None else log.open("w") as told,
        subprocess.Popen(argv, stderr=told, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def status(folder: Path) -> dict[str, object]:
    """What the donor tells; empty while nobody answers."""
    try:
        told = admin.call(folder / "admin.sock", "status")
    except PeerError:
        return {}
    assert isinstance(told, dict)
    return told


def test_it_says_what_it_is_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    with daemon(write_config(tmp_path)) as process:
        told = until(lambda: status(tmp_path), what="the donor's status")
        until(lambda: status(tmp_path).get("slabs"), what="slabs ready")
        assert (told["node"], told["pid"]) == ("d1", process.pid)

        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=60) == 0
        assert not (tmp_path / "donor.sock").exists()
        assert not (tmp_path / "admin.sock").exists()


def test_slabs_and_connections_may_take_all_descriptors_that_the_system_allows(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "farside", "daemon", "--config", str(write_config(tmp_path))]
    limited = ["sh", "-c", 'ulimit -Sn 256 && ulimit -Hn 4096 && exec "$@"', "sh", *argv]
    with subprocess.Popen(limited, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: status(tmp_path), what="the donor's status")

            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (4096, 4096)
        finally:
            process.kill()
        assert process.stderr is not None
        # Fewer than strangers may hold.
        assert any("limit=4096 strangers_may_hold=8192" in line for line in process.stderr)


def test_what_it_lends_is_in_no_core_dump(tmp_path: Path) -> None:
    """[L2]"""
    with daemon(write_config(tmp_path)) as process:
        until(lambda: status(tmp_path).get("slabs"), what="slabs ready")

        # it goes on preparing slabs: one that it maps at this moment is empty, and marked a moment later
        def marked() -> bool:
            slabs = flags_of(process.pid, "memfd:farside-slab")
            return bool(slabs) and all("dd" in flags for flags in slabs)

        until(marked, what="every slab is left out of core dumps")
        # 1: of a dump through a pipe Linux takes 0 for no limit
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (1, 1)


def test_its_metrics_can_be_scraped_and_have_help(tmp_path: Path) -> None:
    port = free_port()
    with daemon(write_config(tmp_path, metrics_listen=f"127.0.0.1:{port}")):
        until(lambda: status(tmp_path), what="the donor's status")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}

    ours = {name: family for name, family in families.items() if name.startswith("farside_donor_")}
    assert {sample.labels["state"] for sample in ours["farside_donor_slabs"].samples} >= {"ready", "lent"}
    assert ours["farside_donor_evictions"].type == "counter"
    assert ours["farside_donor_serving_cpu_seconds"].type == "counter"
    assert all(family.documentation.endswith(".") for family in ours.values())


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("key_file", "/nonexistent/key", "farside keygen"),
        ("proc_root", "/nonexistent", "meminfo"),
        ("metrics_listen", "192.0.2.1:1", "metrics_listen"),
    ],
)
def test_what_cannot_be_is_one_line_at_the_start(tmp_path: Path, name: str, value: str, complaint: str) -> None:
    with daemon(write_config(tmp_path, **{name: value})) as process:
        _, text = process.communicate(timeout=60)

    assert process.returncode not in (0, None)
    assert complaint in text
    assert "Traceback" not in text


def test_a_second_donor_at_the_same_place_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    with daemon(config):
        until(lambda: status(tmp_path), what="the donor's status")
        with daemon(config) as second:
            _, text = second.communicate(timeout=60)

        assert second.returncode not in (0, None)
        assert "another process serves it" in text
        assert status(tmp_path)
