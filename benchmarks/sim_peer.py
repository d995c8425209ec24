"""AccaSim, the published simulator that ours is measured against: installed from PyPI, run on the same workload.

It knows whole seconds, and processors instead of GPUs. Its FIFO and its shortest job first let the first job that has
no room block all behind it, as ours do. So the average wait comes out equal, and says that both did the same work.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.load import BUILD
from benchmarks.sim_case import GPUS_PER_NODE, jobs_of
from benchmarks.sim_result import PeerResult, TraceCase
from benchmarks.sim_run import CaseError, run_case
from farside.scheduler.sim.trace.job import TraceJob

PEER = "accasim 1.1.3"
# What it needs and does not name completely; matplotlib is for its plots, but it imports it.
PACKAGES = ("accasim==1.1.3", "psutil", "sortedcontainers", "numpy", "scipy", "matplotlib")
VENV = BUILD / "peers" / "accasim"
DRIVER = Path(__file__).parent / "sim_accasim.py"
DISPATCHERS = ("fifo", "sjf")
PEER_GPUS = 64  # few, so that there is a queue
LIMIT_S = 600.0


def measure(sizes: Sequence[int], folder: Path) -> Iterator[PeerResult]:
    """Both simulators, one after the other, over numbers of jobs."""
    why_not = _install()
    if why_not:
        yield PeerResult(peer=PEER, dispatcher="", jobs=0, why_not=why_not)
        return
    for jobs in sizes:
        for dispatcher in DISPATCHERS:
            yield _one(dispatcher, jobs, folder)


def _install() -> str:
    """Why it can't be installed, in a line; empty: it is."""
    python = VENV / "bin" / "python"
    if (VENV / "installed").exists():
        return ""
    try:
        _run([sys.executable, "-m", "venv", "--system-site-packages", str(VENV)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES])
    except CaseError as error:
        return str(error)
    (VENV / "installed").touch()
    return ""


def _one(dispatcher: str, jobs: int, folder: Path) -> PeerResult:
    case = TraceCase(policy=dispatcher, jobs=jobs, gpus=PEER_GPUS, in_whole_seconds=True)
    workload, system = folder / f"{jobs}.swf", folder / "system.json"
    workload.write_text("".join(_swf_line(at, entry) for at, entry in enumerate(jobs_of(case), start=1)))
    system.write_text(json.dumps(_system(case.gpus)))
    ours = run_case(case)
    results = folder / f"{dispatcher}-{jobs}"
    try:
        told = _run([str(VENV / "bin" / "python"), str(DRIVER), *map(str, (workload, system, results)), dispatcher])
    except CaseError as error:
        return PeerResult(peer=PEER, dispatcher=dispatcher, jobs=jobs, ours_s=ours.cpu_s, why_not=str(error))
    figures = json.loads(told.splitlines()[-1])
    return PeerResult(
        peer=PEER,
        dispatcher=dispatcher,
        jobs=jobs,
        peer_s=figures["seconds"],
        ours_s=ours.cpu_s,
        peer_avg_wait_s=figures["avg_wait_s"],
        ours_avg_wait_s=ours.avg_wait_s,
    )


def _swf_line(at: int, entry: TraceJob) -> str:
    # The 18 fields of the standard workload format; -1 is unknown. The requested time is the true one.
    submit_s, duration_s, gpus = int(entry.job.submit_s), int(entry.duration_s), entry.job.gpus
    return f"{at} {submit_s} -1 {duration_s} {gpus} -1 -1 {gpus} {duration_s} -1 1 1 1 1 1 1 -1 -1\n"


def _system(gpus: int) -> dict[str, object]:
    return {
        "groups": {"node": {"core": GPUS_PER_NODE}},
        "resources": {"node": gpus // GPUS_PER_NODE},
        "equivalence": {"processor": {"core": 1}},
        "start_time": 0,
    }


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CaseError(f"took more than {LIMIT_S:.0f} s") from None
    if done.returncode:
        raise CaseError(next(reversed((done.stderr or done.stdout).strip().splitlines()), "failed without a word"))
    return done.stdout
