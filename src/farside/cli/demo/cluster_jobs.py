"""Jobs of the demo's cluster scene: the paper's workload, scaled to half a minute. PURE."""

import numpy as np

from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.workload.catalog import GPU_MIXES
from farside.scheduler.sim.workload.durations import BoundedPareto
from farside.scheduler.sim.workload.generate import Workload, generate

JOBS = 30
NODES, GPUS_PER_NODE = 4, 8
# Of the first jobs drawn, one in which short jobs come behind long ones, as in the paper's trace.
SEED = 5
# The paper's two minutes to two hours [tiresias §3.5.1], in seconds, and its law of durations (workload/catalog.py).
MIN_S, MAX_S = 1.0, 16.0
LOAD = 1.5
# Works for $1 milliseconds; at SIGTERM it saves what is left of them. It sleeps instead of computing, so that jobs on
# thirty-two GPUs fit on one machine. The sleep runs in the background, as a shell runs a trap only after the command in
# the foreground, while `wait` returns at once. The place is renamed when it is whole: a SIGKILL in between leaves the
# old one.
SCRIPT = """
place="$PLACE/$FARSIDE_JOB.$RANK"
left=$1
if [ -n "$FARSIDE_RESUME" ] && [ -e "$place" ]; then
    left=$(cat "$place")
fi

count() {
    left=$((left - ($(date +%s%N) - begun) / 1000000))
}
save() {
    kill $! 2>/dev/null
    count
    echo "$left" >"$place.part" && mv "$place.part" "$place"
    exit 0
}
begun=$(date +%s%N)
trap save TERM
echo ready >"$FARSIDE_READY"
while [ "$left" -gt 0 ]; do
    sleep "$((left / 1000)).$(printf %03d $((left % 1000)))" &
    wait $! 2>/dev/null
    count
    begun=$(date +%s%N)
done
"""


def demo_jobs(count: int = JOBS, *, seed: int = SEED) -> tuple[TraceJob, ...]:
    """Jobs by submit time, the first at 0; equal for equal seeds."""
    workload = Workload(
        jobs=count,
        service=BoundedPareto(alpha=1.0, min_s=MIN_S, max_s=MAX_S),
        gpu_mix=tuple((gpus, jobs) for gpus, jobs in GPU_MIXES["tiresias"] if gpus <= NODES * GPUS_PER_NODE),
        cluster_gpus=NODES * GPUS_PER_NODE,
        load=LOAD,
        start_s=0.0,
    )
    return generate(workload, np.random.default_rng(seed)).jobs
