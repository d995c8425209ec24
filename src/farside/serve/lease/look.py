"""One look at a deployment's leases at the manager. Blocks: it is done in a thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farside.client.manager_client import ManagerClient
from farside.errors import FarsideError, PeerError, RefusedError

# Leases in one request, whose address has room for so many numbers.
IDS_ASKED = 256
_NO_ROUTE = 404
_DRAINING = ("draining", "drained", "closing")
_FORGOTTEN: Mapping[str, Any] = {
    "state": "done", "nodes": (), "held_s": 0.0, "master_port": 0, "reason": "it is forgotten"
}  # fmt: skip


@dataclass(slots=True)
class Seen:
    """What one look at the manager has found: jobs by number, and nodes that drain."""

    jobs: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    draining: set[str] = field(default_factory=set[str])


def listed_leases(client: ManagerClient, name: str) -> list[str]:
    """This deployment's jobs that are not over.

    Raises:
        FarsideError: The manager does not answer, or refuses to say.
    """
    me = client.get("whoami")["name"]
    jobs = client.get("jobs", user=me)["jobs"]
    return [one["id"] for one in jobs if (one["deployment"], one["user"]) == (name, me)]


def seen_leases(client: ManagerClient, name: str, job_ids: Sequence[str]) -> Seen:
    """The leases of a deployment and the nodes that they are on, all at once where the manager can.

    Raises:
        FarsideError: The manager does not answer.
    """
    seen = Seen()
    for begin in range(0, len(job_ids), IDS_ASKED):
        some = job_ids[begin : begin + IDS_ASKED]
        try:
            told = client.get("deployments", name, "leases", ids=",".join(some))
        except RefusedError as error:
            if error.code != _NO_ROUTE:
                raise
            return _seen_each(client, job_ids)  # a manager of the version before
        seen.jobs.update({job["id"]: job for job in told["jobs"]})
        seen.draining.update(node for node, state in told["nodes"].items() if state in _DRAINING)
    seen.jobs.update({job_id: _FORGOTTEN for job_id in job_ids if job_id not in seen.jobs})
    return seen


def _seen_each(client: ManagerClient, job_ids: Sequence[str]) -> Seen:
    seen = Seen(jobs={job_id: _job(client, job_id) for job_id in job_ids})
    for node in {node for job in seen.jobs.values() for node in job["nodes"]}:
        if client.get("nodes", node)["state"] in _DRAINING:
            seen.draining.add(node)
    return seen


def _job(client: ManagerClient, job_id: str) -> Mapping[str, Any]:
    try:
        job: Mapping[str, Any] = client.get("jobs", job_id)
        return job
    except PeerError:
        raise
    except FarsideError:  # the manager has forgotten it, long after its end
        return _FORGOTTEN
