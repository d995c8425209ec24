"""``python -m benchmarks.beside_slurm``: how many jobs a second, Farside beside Slurm on the same machine.

Each has four nodes with eight GPUs declared, and runs jobs of one GPU that do nothing: a thousand submitted as one
array; then a hundred, each submitted by its own call of the command line, one after the other. Both run at once, and
the one that is not measured is idle; they take turns. Slurm is Debian's, as tests/slurm/cluster.py starts it: without
accounting, its scheduler told to look at every submission, as Farside does.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.beside_render import HEAD, section
from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.section import keep
from farside.client.manager_client import ManagerClient, find_manager
from farside.errors import FarsideError
from farside.sandbox.process import command
from farside.sandbox.session import Session, open_sandbox
from farside.sandbox.waiting import wait_until
from tests.slurm.cluster import SlurmCluster, slurm_cluster

RESULTS = Path(__file__).parent / "results" / "beside_slurm.json"
DOCUMENT = Path(__file__).parents[1] / "docs" / "slurm.md"
NODES, GPUS = 4, 8
LIMIT_S = 300.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One repetition of one of the two.

    ``array_s``: from the call to the end of the last of the array's jobs; ``submit_s``: of it, the call itself.
    ``call_s``: one call of the command line, the median; ``cpu_s``: its CPU time, the mean. ``start_s``: from its begin
    to the job's own first line, the median. ``singly_s``: from the first call to the end of the last job.
    """

    name: str
    jobs: int
    submit_s: float
    array_s: float
    singles: int
    call_s: float
    cpu_s: float
    start_s: float
    singly_s: float


class Cluster(Protocol):
    """What is measured."""

    @property
    def name(self) -> str:
        """For the table."""
        ...

    def submit_array(self, count: int) -> None:
        """So many jobs that do nothing, by one call."""
        ...

    def submit(self, script: str) -> None:
        """One job, by one call."""
        ...

    def is_idle(self) -> bool:
        """Whether no job is left."""
        ...


@dataclass(frozen=True, slots=True)
class Farside:
    """A sandbox's manager and agents."""

    session: Session
    folder: Path
    name: str = "farside"

    def submit_array(self, count: int) -> None:
        """By `farside submit --array`."""
        self._call("--array", str(count), "--", "true")

    def submit(self, script: str) -> None:
        """By `farside submit`."""
        self._call("--", "sh", "-c", script)

    def _call(self, *arguments: str) -> None:
        environment = {**os.environ, "FARSIDE_STATE": str(self.session.state)}
        argv = command("submit", "--quiet", "--gpus", "1", "--output", "/dev/null", *arguments)
        subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def is_idle(self) -> bool:
        """By the API: a list of what is not over, cut to one."""
        with ManagerClient(find_manager(None, self.session.state)) as client:
            return not client.get("jobs", limit="1")["jobs"]


@dataclass(frozen=True, slots=True)
class Slurm:
    """A real Slurm on loopback."""

    cluster: SlurmCluster
    name: str = "slurm"

    def submit_array(self, count: int) -> None:
        """By `sbatch --array`."""
        self._call(f"--array=0-{count - 1}", "--wrap", "true")

    def submit(self, script: str) -> None:
        """By `sbatch`."""
        self._call("--wrap", script)

    def _call(self, *arguments: str) -> None:
        argv = ["sbatch", "--parsable", "--mem=10", "--gres=gpu:1", "-o", "/dev/null", *arguments]
        subprocess.run(
            argv, env=self.cluster.environment, check=True, stdout=subprocess.DEVNULL, cwd=self.cluster.folder
        )

    def is_idle(self) -> bool:
        """By squeue."""
        return not self.cluster.say("squeue", "--noheader", "--format=%i")


def measure(cluster: Cluster, folder: Path, jobs: int, singles: int) -> Figures:
    """Both loads once.

    Raises:
        PeerError: Jobs have not ended within the limit.
    """
    begun_s = time.time()
    cluster.submit_array(jobs)
    submit_s = time.time() - begun_s
    array_s = _idle_at(cluster) - begun_s
    calls: list[tuple[float, float]] = []
    before_s = _children_cpu_s()
    for at in range(singles):
        call_s = time.time()
        cluster.submit(f"date +%s.%N >{folder}/{cluster.name}-{at}")
        calls.append((call_s, time.time()))
    cpu_s = (_children_cpu_s() - before_s) / singles
    singly_s = _idle_at(cluster) - calls[0][0]
    started_s = [float((folder / f"{cluster.name}-{at}").read_text()) for at in range(singles)]
    return Figures(
        name=cluster.name, jobs=jobs, submit_s=submit_s, array_s=array_s, singles=singles, singly_s=singly_s,
        cpu_s=cpu_s, call_s=statistics.median(end_s - at_s for at_s, end_s in calls),
        start_s=statistics.median(one_s - at_s for one_s, (at_s, _) in zip(started_s, calls, strict=True)),
    )  # fmt: skip


def _children_cpu_s() -> float:
    """Of those that have ended and were waited for: the calls, as manager, agents and daemons run on."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _idle_at(cluster: Cluster) -> float:
    wait_until(cluster.is_idle, f"the end of {cluster.name}'s jobs", limit_s=LIMIT_S, every_s=POLL_S)
    return time.time()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside_slurm", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="of the array; default: %(default)s")
    parser.add_argument("--singles", type=int, default=100, help="one by one; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--output", metavar="FILE", default=str(RESULTS), help="default: %(default)s")
    options = parser.parse_args(arguments)
    found: list[Figures] = []
    machine = this_machine()
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="beside-")))
            session = stack.enter_context(
                open_sandbox(("--cluster", f"{NODES}x{GPUS}", "--donors", "1", "--size", "64MiB"))
            )
            slurm_folder = folder / "slurm"
            slurm_folder.mkdir()
            partitions = f"PartitionName=gpu Nodes=gn[1-{NODES}] Default=YES MaxTime=INFINITE State=UP"
            slurm = stack.enter_context(
                slurm_cluster(slurm_folder, partitions=partitions, nodes=NODES, gpus=GPUS, job_age_s=10)
            )
            both: list[Cluster] = [Farside(session, folder), Slurm(slurm)]
            for repeat in range(options.repeats):
                for cluster in both if repeat % 2 == 0 else reversed(both):
                    found.append(measure(cluster, folder, options.jobs, options.singles))
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    told = {
        "command": this_command("benchmarks.beside_slurm"), "commit": this_commit(), "machine": asdict(machine),
        "figures": [asdict(one) for one in found],
    }  # fmt: skip
    keep(told, Path(options.output), text=section(told), head=HEAD, results=RESULTS, document=DOCUMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
