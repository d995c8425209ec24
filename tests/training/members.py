"""Members of a job as threads of one process, each with a model of its own."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.training.local_session import LocalJob, LocalSession


class Source:
    """Where a member's plans come from: nowhere, since its session is a local one."""

    start = 0

    def __init__(self, job: LocalJob, rank: int) -> None:
        self.job, self.rank, self.members = job, rank, job.members
        self.iterations_s: list[float] = []

    def measured(self, iteration: int, iteration_s: float) -> None:
        """Keeps it."""
        self.iterations_s.append(iteration_s)

    def close(self) -> None:
        """Nothing is open."""


def session_of(source: Source, *, rule: str, tensors: Any) -> LocalSession:
    """A session of the local job."""
    return source.job.session(source.rank, rule, tensors)


def run_members(count: int, body: Callable[..., Any]) -> list[Any]:
    """What ``body(rank, attach)`` returns, by rank. The first error of one of them is raised."""
    from farside.training.door import open_door

    job = LocalJob(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def attach(
        rank: int,
        model: Any,
        optimizer: Any,
        *,
        update: str = "server",
        overlap: bool = True,
        resume: str | None = None,
        find_unused_parameters: bool = False,
    ) -> Any:
        source = partial(Source, job, rank)
        return open_door(
            model,
            optimizer,
            update=update,
            overlap=overlap,
            resume=resume,
            find_unused_parameters=find_unused_parameters,
            source_of=source,
            session_of=session_of,
        )

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank, partial(attach, rank))
        except BaseException as error:
            errors.append(error)
            job.end()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job.close()
    if errors:
        raise errors[0]
    return results
