"""Prometheus' own linter over the metrics of running programs, our alarms, and what the dashboard asks for."""

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from farside.cli.keygen import make_key
from tests.interop.dashboard import read_dashboard
from tests.support.ports import free_port
from tests.support.waiting import until

COMMON = 'node = "here"\nkey_file = "{folder}/key"\nadmin_socket = "{folder}/{program}.sock"\n'
PROGRAMS = {
    "daemon": COMMON + 'listen = "unix:{folder}/donor.sock"\nslab_bytes = "2MiB"\nmax_slabs = 4\n',
    "blockdev": COMMON + 'listen = "unix:{folder}/nbd.sock"\nslab_bytes = "2MiB"\nsize_bytes = "32MiB"\n'
    'protection = "disk"\ndisk_path = "{folder}/disk"\npeers_file = "{folder}/peers.toml"\npending_bytes = "16MiB"\n'
    'state_dir = "{folder}/blockdev"\n',
    "manager": 'listen = "unix:{folder}/manager.sock"\nstore_url = "sqlite:///{folder}/manager.db"\n'
    'state_dir = "{folder}/manager"\ntokens_file = "{folder}/tokens.toml"\n',
    "agent": 'node = "here"\nmanager = "ws://127.0.0.1:1"\ntoken_file = "{folder}/token"\ndeclared_gpus = 2\n'
    'state_dir = "{folder}/agent"\nadmin_socket = "{folder}/agent.sock"\nrun_as = "starter"\ndaemon_socket = ""\n'
    'aggregator_socket = ""\naggregation_socket = ""\n',
}
SYSTEMD = Path(__file__).parents[2] / "systemd"


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
        PROGRAMS[program].format(folder=folder, program=program) + f'metrics_listen = "127.0.0.1:{port}"\n'
    )
    argv = [sys.executable, "-m", "farside", program, "--config", str(config)]
    with (folder / f"{program}.log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)


def scraped(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
            return text
    except (TimeoutError, urllib.error.URLError, ConnectionError):
        return ""


def test_the_alarms_that_we_ship_are_rules_of_prometheus() -> None:
    rules = SYSTEMD / "farside.rules.yml"

    done = subprocess.run([promtool(), "check", "rules", rules], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a scrape of each program gets, once all that it has to tell of is there."""
    folder = tmp_path_factory.mktemp("programs")
    make_key(folder / "key")
    (folder / "peers.toml").write_text(f'[[donor]]\nnode = "d1"\ncontrol = "unix:{folder}/donor.sock"\n')
    (folder / "token").write_text("a-token\n")
    (folder / "token").chmod(0o600)
    found = {}
    with ExitStack() as stack:
        ports = {program: free_port() for program in PROGRAMS}
        for program, port in ports.items():
            stack.enter_context(running(program, folder, port))
        for program, port in ports.items():
            # The manager's API has these from others, each in its own time.
            late = ("farside_manager_cycle_seconds", "farside_manager_store_bytes") if program == "manager" else ()

            def whole(port: int = port, words: tuple[str, ...] = ("farside_", *late)) -> str:
                text = scraped(port)
                return text if all(word in text for word in words) else ""

            found[program] = until(whole, what=f"metrics of {program}", deadline_s=60)
        yield found


def named_in(text: str) -> set[str]:
    return set(re.findall(r"farside_(?:blockdev|donor|manager|agent)_\w+", text))


def test_alarms_name_metrics_that_there_are(texts: dict[str, str]) -> None:
    rules = (SYSTEMD / "farside.rules.yml").read_text()
    told = "".join(texts.values())

    assert {name for name in named_in(rules) if name not in told} == set()


def test_the_dashboard_asks_for_metrics_that_there_are_in_prometheus_s_language(
    texts: dict[str, str], tmp_path: Path
) -> None:
    told = "".join(texts.values())
    asked = [target.expr for panel in read_dashboard().panels for target in panel.targets]
    rules = tmp_path / "rules.yml"
    # As rules they are parsed by what will answer them.
    groups = [{"record": f"dashboard:{at}", "expr": expr} for at, expr in enumerate(asked)]
    rules.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": groups}]}))

    done = subprocess.run([promtool(), "check", "rules", rules], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(asked)} rules found" in done.stdout
    assert {name for expr in asked for name in named_in(expr) if name not in told} == set()


def test_the_dashboard_s_variables_are_of_metrics_and_labels_that_there_are(texts: dict[str, str]) -> None:
    told = "".join(texts.values())
    queries = [one.query.query for one in read_dashboard().templating.list if not isinstance(one.query, str)]

    assert len(queries) == 2
    assert {name for query in queries for name in named_in(query) if name not in told} == set()


def test_every_panel_of_the_dashboard_is_explained_and_has_a_place_of_its_own() -> None:
    panels = read_dashboard().panels
    places = [
        (x, y)
        for panel in panels
        for x in range(panel.gridPos.x, panel.gridPos.x + panel.gridPos.w)
        for y in range(panel.gridPos.y, panel.gridPos.y + panel.gridPos.h)
    ]

    assert len(places) == len(set(places))
    assert max(x for x, _ in places) == 23
    assert len({panel.id for panel in panels}) == len(panels)
    assert [panel.title for panel in panels if panel.type != "row" and not panel.description] == []
    assert [panel.title for panel in panels if panel.type != "row" and not panel.targets] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_metrics_of_each_program_pass_promtools_checks(program: str, texts: dict[str, str]) -> None:
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=texts[program], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
