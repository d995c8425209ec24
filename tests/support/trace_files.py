"""A small file of every format of traces, written by hand after what its data set's documentation says."""

import gzip
import json
from pathlib import Path

FARSIDE = """\
job_id,submit_time,gpus,duration_s,vc,user,name,parameter_servers,model,model_bytes,skew,preemptible,limit_s
a,2024-01-01 08:00:00,1,60,v1,ann,train,0,,0,0,true,
b,2024-01-01 08:00:00.5,8,7200.25,v1,bob,"bert, large",8,vgg16,553440051,0.743,false,86400
"""
TIRESIAS = """\
job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,606,vgg19,164,30
1,8,30,133,no-such-model,147,23
"""
PHILLY_CSV = """\
submit_time,duration,gpus,vc,complete_vc
2017-10-01 00:00:10,100,1,aa,1
2017-10-01 00:00:05,200,8,bb,0
"""
HELIOS = """\
job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
10,u1,vcA,train,8,64,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:02,2020-06-09 18:42:02,60,1
11,u1,vcA,prep,0,4,1,COMPLETED,2020-06-09 18:41:02,2020-06-09 18:41:02,2020-06-09 18:42:02,60,0
12,u2,vcB,train,1,8,1,CANCELLED,2020-06-09 18:41:03,None,None,,
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,1,460,V100M16|V100M32,LS,Running,427061,12902960,427071
openb-pod-0002,8000,30517,8,1000,,BE,Pending,427062,427070,
openb-pod-0003,4000,9216,0,0,,BE,Succeeded,427063,427080,427065
"""
SLURM = """\
JobID|User|JobName|Partition|Account|State|Submit|Start|End|Elapsed|ReqTRES|AllocTRES|NNodes|Timelimit
100|ann|train|gpu|lab|COMPLETED|2024-03-01T10:00:00|2024-03-01T10:00:05|2024-03-02T11:00:05|1-01:00:00|\
billing=16,cpu=16,gres/gpu:a100=4,gres/gpu=4,mem=128G,node=1|\
billing=16,cpu=16,gres/gpu:a100=4,gres/gpu=4,mem=128G,node=1|1|2-00:00:00
100.batch||batch||lab|COMPLETED|2024-03-01T10:00:05|2024-03-01T10:00:05|2024-03-02T11:00:05|1-01:00:00||cpu=16|1|
101_3|bob|sweep|gpu|lab|FAILED|2024-03-01T10:01:00|2024-03-01T10:02:00|2024-03-01T10:04:30|00:02:30|\
cpu=2,gres/gpu=2|cpu=2,gres/gpu=2|1|UNLIMITED
101_[4-9%2]|bob|sweep|gpu|lab|PENDING|2024-03-01T10:01:00|Unknown|Unknown|00:00:00|cpu=2,gres/gpu=2||1|UNLIMITED
102|bob|cpus|cpu|lab|COMPLETED|2024-03-01T10:01:00|2024-03-01T10:02:00|2024-03-01T10:04:30|00:02:30|cpu=2|cpu=2|1|10:00
103|ann|long|gpu|lab|RUNNING|2024-03-01T10:01:00|2024-03-01T10:02:00|Unknown|5-00:02:30|gres/gpu=1|gres/gpu=1|1|\
UNLIMITED
104|ann|never|gpu|lab|CANCELLED by 1000|2024-03-01T10:01:00|2024-03-01T10:02:00|2024-03-01T10:02:00|00:00:00|\
gres/gpu=1||1|UNLIMITED
"""


def _attempt(start: str | None, end: str | None, gpus: int) -> dict[str, object]:
    machines = [
        {"ip": f"m{at}", "gpus": [f"gpu{gpu}" for gpu in range(min(8, gpus - 8 * at))]} for at in range((gpus + 7) // 8)
    ]
    return {"start_time": start, "end_time": end, "detail": machines}


PHILLY_LOG: list[dict[str, object]] = [
    {
        "status": "Pass",
        "vc": "ee",
        "jobid": "application_1",
        "attempts": [
            _attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8),
            _attempt("2017-10-07 01:13:30", "2017-10-09 06:53:12", 8),
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce",
    },
    {
        "status": "Killed",
        "vc": "ee",
        "jobid": "application_2",
        "attempts": [],
        "submitted_time": "2017-10-07 01:11:40",
        "user": "ce",
    },
    {
        "status": "Killed",
        "vc": "ff",
        "jobid": "application_3",
        "attempts": [_attempt("2017-10-07 02:00:00", None, 16)],
        "submitted_time": "2017-10-07 01:11:41",
        "user": "cf",
    },
]
PHILLY_JSON = json.dumps(PHILLY_LOG, indent=1)

SAMPLES = {
    "farside": FARSIDE,
    "tiresias": TIRESIAS,
    "philly-csv": PHILLY_CSV,
    "helios": HELIOS,
    "openb": OPENB,
    "slurm": SLURM,
    "philly-json": PHILLY_JSON,
}


def write_file(folder: Path, text: str | bytes, *, packed: bool = False) -> Path:
    """A file with this text, plain or gzip."""
    data = text if isinstance(text, bytes) else text.encode()
    path = folder / ("trace.gz" if packed else "trace")
    path.write_bytes(gzip.compress(data) if packed else data)
    return path
