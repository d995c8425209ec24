"""`farside aggregator` as a process, whose members are real sessions."""

from pathlib import Path

import pytest

from tests.aggregation.service import service, source, training
from tests.support.ports import free_port

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
        assert one.stop() == 0
    assert not (tmp_path / "a.sock").exists()
    assert not (tmp_path / "a.admin").exists()
