"""What Prometheus hears of the manager, and what becomes of a part that hangs."""

import os
import signal
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from farside.scheduler.manager.api.metrics import ManagerCollector
from farside.scheduler.manager.model.event import DrainRequested
from tests.live.manager import Manager, running_manager
from tests.live.test_api import OTHER, Api, api_test
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_S, until

Samples = dict[str, float]


def samples(text: str) -> Samples:
    """By name and labels, as in a query: ``name{state="idle"}``."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(one.labels.items()))
            found[f"{one.name}{{{labels}}}" if labels else one.name] = one.value
    return found


def scraped(port: int) -> Samples:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
            return samples(answer.read().decode())
    except OSError:
        return {}


def test_a_running_manager_tells_of_its_cycles_jobs_and_store(tmp_path: Path) -> None:
    port = free_port()
    with running_manager(tmp_path, metrics_listen=f"127.0.0.1:{port}"):

        def told() -> Samples | None:
            now = scraped(port)
            is_whole = now.get("farside_manager_cycle_seconds_count") and "farside_manager_store_bytes" in now
            return now if is_whole else None

        found = until(told, what="metrics of the brain", deadline_s=60, every_s=0.2)

    assert found is not None
    assert found["farside_manager_brain_answers"] == 1
    assert found["farside_manager_generation"] == 1
    assert found["farside_manager_log_entries_total"] == 1
    assert found['farside_manager_jobs{state="waiting"}'] == 0
    assert found["farside_manager_store_bytes"] > 10_000
    count = found["farside_manager_cycle_seconds_count"]
    assert count == found['farside_manager_cycle_seconds_bucket{le="+Inf"}'] >= 1
    assert found["farside_manager_cycle_seconds_sum"] > 0
    assert found["farside_manager_cycle_failures_total"] == 0


def test_gpus_are_counted_by_what_may_be_done_with_them_and_no_brain_is_no_cycles(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.log.write([DrainRequested(node="n0", reason="", by="root")], "test")
        collector = ManagerCollector(api.context)
        await collector.ask()

        found = {family.name: family for family in collector.collect()}

        counts = {one.labels["state"]: one.value for one in found["farside_manager_gpus"].samples}
        assert counts == {"held": 0, "free": 0, "unavailable": 8, "broken": 0}
        assert found["farside_manager_brain_answers"].samples[0].value == 0
        assert "farside_manager_cycle_seconds" not in found

    api_test(test, tmp_path)


def test_the_longest_wait_is_that_of_who_waits_now(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})
        since_s = api.log.state.jobs["1"].since_s
        collector = ManagerCollector(api.context)
        found = {family.name: family for family in collector.collect()}

        waited_s = found["farside_manager_longest_wait_seconds"].samples[0].value
        assert 0 <= waited_s <= api.log.now_s() - since_s

    api_test(test, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("part", ["api", "brain"])
def test_a_part_that_hangs_is_killed_and_started_again(part: str, tmp_path: Path) -> None:
    manager = Manager(tmp_path)
    # With less patience.
    impatient = "main.HANG_S |= {'api': 3.0, 'brain': 3.0}\nmain.LOAD_S = 3.0"
    try:
        manager.start(f"from farside.scheduler.manager import main\n{impatient}")
        hung = manager.pids()[part]
        os.kill(hung, signal.SIGSTOP)

        until(lambda: manager.pids()[part] != hung, what="another process", deadline_s=60, every_s=0.2)
        manager.wait_ready()

        assert "a process of the manager hangs and is killed" in manager.log()
        assert manager.get("jobs") == {"jobs": []}
    finally:
        manager.stop()
