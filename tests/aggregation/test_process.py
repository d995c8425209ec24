"""`farside aggregator` as a process, whose members are real sessions."""

import io
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from farside.agent.aggregator.metrics import Totals, aggregator_metrics
from farside.agent.aggregator.status import AggregatorStatus, JobStatus
from farside.status.table import aggregator_table
from tests.aggregation.service import service, source, training
from tests.support.ports import free_port
from tests.support.programs import outcome

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")


@pytest.mark.parametrize("rule", ["mean", "sgd"])
def test_members_of_one_machine_and_of_another_train_as_one_process_does(tmp_path: Path, rule: str) -> None:
    with service(tmp_path, tcp_port=free_port()) as one:
        sources = [source(tmp_path, [one.unix], 0), source(tmp_path, [one.tcp], 1)]
        with training(sources, rule) as job:
            job.step(3)

            told = one.status()
            assert [(job["job"], job["lanes"], job["members"]) for job in told["jobs"]] == [("j", 2, 2)]
            assert told["jobs"][0]["updates"] == 3 * job.chunks
            assert (told["jobs"][0]["lanes_shm"], told["jobs"][0]["lanes_rdma"]) == (1, 0)
            assert told["rdma_fallbacks"] == 0
        assert one.stop() == 0
    assert not (tmp_path / "a.sock").exists()
    assert not (tmp_path / "a.admin").exists()


def test_metrics_count_what_jobs_did(tmp_path: Path) -> None:
    port = free_port()
    with service(tmp_path, metrics_listen=f"127.0.0.1:{port}") as one:
        with training([source(tmp_path, [one.unix], 0, members=1)], "sgd") as job:
            job.step(2)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()

    found = {
        sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }  # fmt: skip
    assert found["farside_aggregator_updates_total"] == 2 * job.chunks
    assert found["farside_aggregator_jobs"] == 1
    assert found["farside_aggregator_restarts_total"] == 0
    assert found["farside_aggregator_pushed_bytes_total"] > 0


def test_status_and_metrics_say_what_gradients_go_by() -> None:
    job = JobStatus(
        job="j", start=0, members=4, rule="sum", chunks=1, lanes=4, lanes_shm=1, lanes_rdma=2, lanes_without_codes=1,
        wrong_codes=5, updates=0, busy_s=0, pushed_bytes=0, result_bytes=0, memory_bytes=0,
    )  # fmt: skip
    status = AggregatorStatus(
        node="a", pid=1, incarnation=1, cores=1, memory_bytes=1, used_bytes=0, unix="", tcp="", machine="", restarts=0,
        rdma_fallbacks=3, jobs=(job,),
    )  # fmt: skip

    samples = [one for family in aggregator_metrics(status, Totals().take(status)) for one in family.samples]

    carriers = {one.labels["carrier"]: one.value for one in samples if one.name == "farside_aggregator_lanes"}
    assert carriers == {"shm": 1, "rdma": 2, "tcp": 1}
    found = {one.name: one.value for one in samples}
    assert found["farside_aggregator_lanes_without_codes"] == 1
    assert found["farside_aggregator_wrong_codes_total"] == 5
    assert found["farside_aggregator_rdma_fallbacks_total"] == 3
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(aggregator_table([msgspec.to_builtins(status)]))
    assert "1 shm, 2 rdma, 1 tcp" in console.export_text()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"cores": "64"}, "cores: is 64, and this machine has"),
        ({"memory_bytes": "900TiB"}, "memory_bytes: is 900 TiB, and this machine has"),
        ({"memory_bytes": "1KiB"}, "memory_bytes: is 1 KiB, less than a model of one tensor needs"),
        ({"key_file": "/none"}, "key file /none: No such file or directory"),
    ],
)
def test_settings_that_cant_be_served_end_in_one_line(tmp_path: Path, settings: dict[str, str], problem: str) -> None:
    given = {"admin_socket": str(tmp_path / "admin"), "listen": f"unix:{tmp_path}/a", **settings}
    words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]

    done = outcome([sys.executable, "-m", "farside", "aggregator", *words])

    assert done.status == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
