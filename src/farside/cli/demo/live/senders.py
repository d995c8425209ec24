"""Threads that submit the jobs of a day.

The manager answers a submission when it is on the disk, and hundreds of jobs of a log may come within a second. One
connection would submit a job each time that the disk was written; what comes on several connections meanwhile, the
manager writes at once. Each thread keeps its connection while the jobs that it submits have the same user.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import local
from time import monotonic
from typing import Any

from farside.cli.demo import cluster_jobs
from farside.cli.demo.live.day import ALL
from farside.client.manager_client import ManagerAddress, ManagerClient
from farside.scheduler.sim.trace.job import TraceJob

GRACE_S = 5.0
"""Time that borrowers have to leave; jobs of a day leave in milliseconds."""
# Submissions that are under way at a time. More would wait at the manager for the same commit.
THREADS = 8

Answer = tuple[str, float]
"""A job's id, and when the manager had the job, by the monotonic clock."""


class Senders(AbstractContextManager["Senders"]):
    """They take jobs in the order in which they get them; use with ``with``."""

    def __init__(self, places: Path) -> None:
        """``places``: a folder where jobs that are preempted keep how far they are."""
        self._places = places
        self._pool = ThreadPoolExecutor(THREADS)
        self._own = local()  # of each thread its connection, and to whom
        self._clients: list[ManagerClient] = []
        self._last: Future[Answer] | None = None

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for client in self._clients:
            client.close()

    def send(self, address: ManagerAddress, one: TraceJob) -> Future[Answer]:
        """Submit a job as the user of this address; returns at once.

        Raises:
            FarsideError: The job before was refused, or nobody answered.
        """
        if self._last is not None and self._last.done():
            self._last.result()
        self._last = self._pool.submit(self._send, address, one)
        return self._last

    def _send(self, address: ManagerAddress, one: TraceJob) -> Answer:
        (job_id,) = self._client(address).post("jobs", body=_body(one, self._places))["ids"]
        return str(job_id), monotonic()

    def _client(self, address: ManagerAddress) -> ManagerClient:
        if getattr(self._own, "address", None) != address:
            if hasattr(self._own, "client"):
                self._own.client.close()
            self._own.address, self._own.client = address, ManagerClient(address)
            self._clients.append(self._own.client)
        client: ManagerClient = self._own.client
        return client


def _body(one: TraceJob, places: Path) -> dict[str, Any]:
    body: dict[str, Any] = {
        "argv": ["/bin/sh", "-c", cluster_jobs.SCRIPT, "job", str(round(1000 * one.duration_s))],
        "gpus": one.job.gpus,
        "env": {"PLACE": os.fspath(places)},
        "cwd": "/",
        "output": "/dev/null",
        "preemptible": True,
        "grace_s": GRACE_S,
    }
    if one.job.name:
        body["name"] = one.job.name
    if one.job.vc != ALL:
        body["partition"] = one.job.vc
    return body
