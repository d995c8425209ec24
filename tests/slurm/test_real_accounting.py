"""History from a real slurmdbd: what sacct tells of jobs that ended before anybody looked.

Skipped where Debian's slurmdbd and mariadb-server-core are not installed besides Slurm itself.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.scheduler.slurm.commands import SlurmCommands
from tests.slurm.cluster import SlurmCluster, slurm_cluster
from tests.support.waiting import until

PARTITIONS = "PartitionName=gpu Nodes=gn1 Default=YES MaxTime=INFINITE State=UP"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_cluster(folder, partitions=PARTITIONS, nodes=1, has_accounting=True) as cluster:
        yield cluster


def commands(folder: Path) -> SlurmCommands:
    return SlurmCommands(folder / "slurm.conf", 30.0)


def test_slurm_says_that_it_keeps_accounts(slurm: SlurmCluster) -> None:
    assert asyncio.run(commands(slurm.folder).traits()).has_accounting


def test_jobs_that_have_ended_are_known_with_their_gpus_and_times(slurm: SlurmCluster) -> None:
    since_s = time.time() - 60
    named = slurm.submit("--gres=gpu:2", "--time=5", "--job-name=one|two words", script="sleep 1.1")
    slurm.submit("--time=5", script="true")  # without a GPU it is none of ours
    runs = slurm.submit("--gres=gpu:1")

    def told() -> set[str]:
        return {one.job_id for one in asyncio.run(commands(slurm.folder).history(since_s))}

    until(lambda: named in told(), what="slurmdbd knows the end", deadline_s=60.0, every_s=0.5)
    (one,) = asyncio.run(commands(slurm.folder).history(since_s))

    assert (one.job_id, one.name, one.partition, one.gpus, one.limit_s) == (named, "one|two words", "gpu", 2, 300.0)
    assert one.submit_s <= one.start_s < one.end_s <= time.time() + 1
    assert one.held_s == one.end_s - one.start_s
    assert runs not in told()
