"""Prometheus' own linter over the metrics of a running donor and a running borrower."""

import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from farside.keygen import make_key
from tests.support.sandbox import free_port
from tests.support.waiting import until

PROGRAMS = {
    "daemon": 'listen = "unix:{folder}/donor.sock"\nslab_bytes = "2MiB"\nmax_slabs = 4\n',
    "blockdev": 'listen = "unix:{folder}/nbd.sock"\nslab_bytes = "2MiB"\nsize_bytes = "32MiB"\nprotection = "disk"\n'
    'disk_path = "{folder}/disk"\npeers_file = "{folder}/peers.toml"\npending_bytes = "16MiB"\n'
    'state_dir = "{folder}/blockdev"\n',
}


def promtool() -> str:
    # Beside the interpreter is where `make test` puts it.
    beside = Path(sys.executable).with_name("promtool")
    found = str(beside) if beside.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")
    return found


@contextmanager
def running(program: str, folder: Path, port: int) -> Iterator[None]:
    config = folder / f"{program}.toml"
    config.write_text(
        PROGRAMS[program].format(folder=folder)
        + f'node = "here"\nkey_file = "{folder}/key"\n'
        + f'admin_socket = "{folder}/{program}.sock"\nmetrics_listen = "127.0.0.1:{port}"\n'
    )
    argv = [sys.executable, "-m", "farside", program, "--config", str(config)]
    with (folder / f"{program}.log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def scraped(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except (TimeoutError, urllib.error.URLError, ConnectionError):
        return ""


def test_the_alarms_that_we_ship_are_rules_of_prometheus() -> None:
    rules = Path(__file__).parents[2] / "systemd/farside.rules.yml"

    done = subprocess.run([promtool(), "check", "rules", rules], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_alarms_name_metrics_that_there_are(tmp_path: Path) -> None:
    rules = (Path(__file__).parents[2] / "systemd/farside.rules.yml").read_text()
    make_key(tmp_path / "key")
    (tmp_path / "peers.toml").write_text(f'[[donor]]\nnode = "d1"\ncontrol = "unix:{tmp_path}/donor.sock"\n')
    told = ""
    with ExitStack() as stack:
        for program in PROGRAMS:
            port = free_port()
            stack.enter_context(running(program, tmp_path, port))
            told += until(partial(scraped, port), what=f"metrics of {program}", deadline_s=30)

    named = set(re.findall(r"farside_(?:blockdev|donor)_\w+", rules))
    assert {name for name in named if name not in told} == set()


def test_metrics_of_both_programs_pass_promtools_checks(tmp_path: Path) -> None:
    tool = promtool()
    make_key(tmp_path / "key")
    (tmp_path / "peers.toml").write_text(f'[[donor]]\nnode = "d1"\ncontrol = "unix:{tmp_path}/donor.sock"\n')

    with ExitStack() as stack:
        for program in PROGRAMS:
            port = free_port()
            stack.enter_context(running(program, tmp_path, port))
            text = until(partial(scraped, port), what=f"metrics of {program}", deadline_s=30)
            done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)

            assert "farside_" in text
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
