"""A real Slurm on loopback: munged, slurmctld and a slurmd for each node, with GPUs that are empty files.

Needs Debian's slurmctld, slurmd, slurm-client and munge; nobody has to be root. All daemons are children of ours, but
for the slurmds that Slurm's own ResumeProgram starts: those leave their pid in the folder.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.slurm.accounting import make_accounting, need_accounting
from tests.support.ports import free_port
from tests.support.programs import need, run
from tests.support.waiting import until

GPUS = 4
START_LIMIT_S = 60.0

_CONF = """\
ClusterName=farside
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/{accounting}
{accounting_lines}
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000,default_queue_depth=1000,bf_continue
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightPartition=10000
GresTypes=gpu
KillWait=1
MinJobAge={job_age_s}
InactiveLimit=0
SlurmctldTimeout=10
SlurmdTimeout=60
SuspendProgram={folder}/suspend.sh
ResumeProgram={folder}/resume.sh
SuspendTime=8640000
SuspendTimeout=2
ResumeTimeout=120
SlurmctldParameters=idle_on_node_suspend,cloud_reg_addrs,power_save_interval=1,power_save_min_interval=1
{nodes}
{partitions}
"""
# Slurm runs these with a PATH that has no sbin.
_SUSPEND = """#!/bin/sh
echo "suspend $1" >>{folder}/power.log
for node in $(SLURM_CONF={folder}/slurm.conf {scontrol} show hostnames "$1"); do
	kill "$(cat {folder}/slurmd-$node.pid)"
done
"""
# slurmctld passes over a node that has booted before it was asked for, by whole seconds: a real one boots for longer.
_RESUME = """#!/bin/sh
asked=$(date +%s)
echo "resume $1" >>{folder}/power.log
for node in $(SLURM_CONF={folder}/slurm.conf {scontrol} show hostnames "$1"); do
	while kill -0 "$(cat {folder}/slurmd-$node.pid)" 2>/dev/null; do sleep 0.1; done # the one before has its port
	while [ "$(date +%s)" -lt $((asked + 2)) ]; do sleep 0.1; done
	setsid {slurmd} -f {folder}/slurm.conf -N $node -b </dev/null >/dev/null 2>&1
done
"""


@dataclass(slots=True, kw_only=True)
class SlurmCluster:
    """Its folder, and what runs."""

    folder: Path
    nodes: tuple[str, ...]
    environment: dict[str, str]
    database: tuple[str, ...] = ()
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def say(self, *argv: str) -> str:
        """Output of one of Slurm's commands, which must succeed."""
        return run(["env", f"SLURM_CONF={self.environment['SLURM_CONF']}", *argv]).strip()

    def submit(self, *options: str, script: str = "sleep 600") -> str:
        """A batch job's id."""
        argv = ["sbatch", "--parsable", "--mem=10", "-o", "/dev/null", "-D", str(self.folder), *options]
        return self.say(*argv, "--wrap", script).partition(";")[0]

    def state(self, job_id: str) -> str:
        """As Slurm writes it; empty where it has forgotten the job."""
        told = self.say("squeue", "--noheader", "--states=all", "--jobs", job_id, "--format=%T")
        return told.splitlines()[0] if told else ""

    def waits_for(self, job_id: str, state: str, deadline_s: float = 120.0) -> None:
        """Slurm looks only every 30 s whether a node that was woken is up, for a job that is to run there."""
        try:
            until(
                lambda: self.state(job_id) == state, what=f"job {job_id} is {state}", deadline_s=deadline_s, every_s=0.1
            )
        except AssertionError as error:
            log = (self.folder / "slurmctld.log").read_text(errors="replace")
            raise AssertionError(f"{error}; it is {self.state(job_id)}\n{log[-4000:]}") from None

    def cancel_all(self) -> None:
        """Leaves no job, so that the next test finds an empty cluster."""
        self.say("scancel", "--user", getpass.getuser())
        until(lambda: not self.say("squeue", "--noheader"), what="no job is left", deadline_s=120.0, every_s=0.1)

    def stop_controller(self) -> None:
        self._end(self._running.pop("slurmctld"))

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-f", f"{self.folder}/slurm.conf")
        until(self._answers, what="slurmctld answers", deadline_s=START_LIMIT_S, every_s=0.1)

    def _answers(self) -> bool:
        told = subprocess.run(["scontrol", "ping"], env=self.environment, capture_output=True, check=False)
        return b" UP" in told.stdout

    def _idle(self) -> bool:
        told = self.say("sinfo", "--noheader", "-N", "--format=%N %T")
        return {line.split()[0] for line in told.splitlines() if line.split()[1] == "idle"} == set(self.nodes)

    def _start(self, name: str, *argv: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._running[name] = subprocess.Popen(
                argv, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder
            )

    def start(self) -> None:
        self._start(
            "munged", "munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key",
            f"--socket={self.folder}/munge.sock", f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        until((self.folder / "munge.sock").exists, what="munged listens", deadline_s=START_LIMIT_S)
        if self.database:
            self._start_accounting()
        self.start_controller()
        for node in self.nodes:
            self._start(f"slurmd-{node}", "slurmd", "-D", "-f", f"{self.folder}/slurm.conf", "-N", node)
        until(self._idle, what="all nodes are idle", deadline_s=START_LIMIT_S, every_s=0.1)

    def _start_accounting(self) -> None:
        self._start("mariadbd", *self.database)
        until((self.folder / "db.sock").exists, what="the database listens", deadline_s=START_LIMIT_S)
        self._start("slurmdbd", "slurmdbd", "-D")

        def registers() -> bool:
            argv = ["sacctmgr", "--immediate", "add", "cluster", "farside"]
            return subprocess.run(argv, env=self.environment, capture_output=True, check=False).returncode == 0

        until(registers, what="slurmdbd knows the cluster", deadline_s=START_LIMIT_S, every_s=0.2)

    def stop(self) -> None:
        if "slurmctld" in self._running:
            self._cancel_all()
        for pid_file in self.folder.glob("slurmd-*.pid"):
            with contextlib.suppress(ValueError, ProcessLookupError):
                os.kill(int(pid_file.read_text()), signal.SIGTERM)
        for process in reversed(self._running.values()):
            self._end(process)

    def _cancel_all(self) -> None:
        """A job that outlives its slurmd leaves a slurmstepd for good."""
        jobs = self.say("squeue", "--noheader", "--format=%A").split()
        if jobs:
            self.say("scancel", *jobs)
        until(lambda: not self.say("squeue", "--noheader"), what="no job is left", deadline_s=60.0, every_s=0.1)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def slurm_cluster(
    folder: Path,
    *,
    partitions: str,
    nodes: int = 2,
    gpus: int = GPUS,
    job_age_s: int = 60,
    has_accounting: bool = False,
) -> Iterator[SlurmCluster]:
    """Nodes gn1, gn2, ... with so many GPUs of the kind h100 each and twice as many CPUs, up and idle.

    ``partitions``: lines of slurm.conf. ``has_accounting``: slurmdbd keeps what jobs there were, for sacct.
    """
    need("slurmctld", "slurmd", "squeue", "scontrol", "sbatch", "munged")
    database: tuple[str, ...] = ()
    accounting_lines = ""
    if has_accounting:
        need_accounting()
        database, accounting_lines = make_accounting(folder)
    names = tuple(f"gn{at}" for at in range(1, nodes + 1))
    host = socket.gethostname().partition(".")[0]
    programs = {name: str(shutil.which(name)) for name in ("scontrol", "slurmd")}
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={2 * gpus} RealMemory=16000 "
        f"Gres=gpu:h100:{gpus}"
        for name in names
    ]
    text = _CONF.format(
        host=host, port=free_port(), user=getpass.getuser(), folder=folder, job_age_s=job_age_s,
        nodes="\n".join(lines), partitions=partitions, accounting="slurmdbd" if has_accounting else "none",
        accounting_lines=accounting_lines,
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)
    devices = folder / "dev"
    devices.mkdir()
    for at in range(gpus):
        (devices / f"gpu{at}").touch()
    (folder / "gres.conf").write_text(f"NodeName=gn[1-{nodes}] Name=gpu Type=h100 File={devices}/gpu[0-{gpus - 1}]\n")
    for name, script in (("suspend.sh", _SUSPEND), ("resume.sh", _RESUME)):
        (folder / name).write_text(script.format(folder=folder, **programs))
        (folder / name).chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    cluster = SlurmCluster(
        folder=folder,
        nodes=names,
        environment={**surroundings, "SLURM_CONF": str(folder / "slurm.conf")},
        database=database,
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
