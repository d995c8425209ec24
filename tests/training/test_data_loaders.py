"""A member that is killed while its DataLoader's processes live on: the Aggregator sees its end at once."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.aggregation.service import service, write_key
from tests.support.waiting import text_of, until
from tests.training.models import Convolutions, made, needs_torch, torch

pytestmark = needs_torch
LOADERS = 4
DEADLINE_S = 120.0


def lanes(status: dict[str, object]) -> int:
    jobs = status.get("jobs")
    assert isinstance(jobs, list)
    return sum(int(job["lanes"]) for job in jobs)


def test_a_member_with_forked_data_loaders_dies_as_cleanly_as_one_without(tmp_path: Path) -> None:
    write_key(tmp_path)
    with service(tmp_path) as aggregator:
        members = [
            subprocess.Popen([sys.executable, "-m", __name__, str(tmp_path), aggregator.unix, str(rank)])
            for rank in (0, 1)
        ]
        loaders: list[psutil.Process] = []
        others: list[psutil.Process] = []
        try:
            until(
                lambda: all(text_of(tmp_path / f"trains.{rank}") for rank in (0, 1)),
                what="training",
                deadline_s=DEADLINE_S,
            )
            loaders, others = (
                [psutil.Process(int(pid)) for pid in text_of(tmp_path / f"trains.{rank}").split()] for rank in (0, 1)
            )
            assert len(loaders) == LOADERS
            assert lanes(aggregator.status()) == 2

            members[0].kill()
            until(lambda: lanes(aggregator.status()) == 1, what="the end of its lane", deadline_s=DEADLINE_S)

            assert all(one.is_running() for one in loaders)
        finally:
            for loader in (*loaders, *others):
                loader.kill()
            for member in members:
                member.kill()
                member.wait()


def _main(folder: Path, unix: str, rank: int) -> None:
    import farside

    model = made(Convolutions, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    farside.attach(model, optimizer, service=[unix], key_file=folder / "key", job="loaders", rank=rank, members=2)
    model.loss(rank, 0).backward()
    optimizer.step()
    # Made after the lanes, of which a forked process inherits the descriptors.
    loader = torch.utils.data.DataLoader(_Sleepy(), batch_size=None, num_workers=LOADERS, prefetch_factor=2)
    batches = iter(loader)
    next(batches)
    model.loss(rank, 1).backward()
    optimizer.step()
    model.loss(rank, 2)
    pids = " ".join(str(worker.pid) for worker in batches._workers)
    (folder / f"part.{rank}").write_text(pids)
    (folder / f"part.{rank}").rename(folder / f"trains.{rank}")
    time.sleep(10 * DEADLINE_S)


class _Sleepy:
    """Batches that a loader is busy with when its parent dies: it looks for that between two of them only."""

    def __getitem__(self, number: int) -> int:
        """The first one of each loader comes at once."""
        if number >= LOADERS:
            time.sleep(10 * DEADLINE_S)
        return number

    def __len__(self) -> int:
        return 100 * LOADERS


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    os._exit(0)
