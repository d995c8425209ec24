"""Settings of `farside slurm`."""

from dataclasses import dataclass
from pathlib import Path

from farside.config.settings import choice, count, flag, path, seconds, text
from farside.config.shared import LogSettings, PolicySettings, PowerSettings

# A table: one setting, one line. A meaning that does not fit is on the next line.
# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig(PolicySettings, PowerSettings, LogSettings):
    """Settings of the program that drives a Slurm. Seconds; the names say which."""

    node: str = text("", "Name of this program; empty: the host name")
    partitions: str = text("",
        "Slurm partitions whose GPU jobs are scheduled, separated by commas; other jobs are left alone")
    slurm_conf: Path = path("", "File slurm.conf; empty: SLURM_CONF, or where Slurm looks for it")
    placement: str = text("consolidate",
        "Placement used to plan, consolidate or fragments; Slurm itself chooses the nodes")
    order_by: str = choice("priority", "priority nice",
        "How to give Slurm the order. priority: as an operator; nice: any user may raise it for their own jobs")
    preempt: bool = flag(False, "Requeue running jobs, if Slurm may, for jobs that come before them; they start again")
    gate: bool = flag(False, "Hold jobs until it is their turn; otherwise only their order is set")
    min_run_s: float = seconds(600.0, 0, 1e9, "Minimum time that a job runs before it may be requeued")
    reserve_after_s: float = seconds(0.0, 0, 1e9, "Waiting time after which a job goes before all others; 0: never")
    requeue_cost_s: float = seconds(120.0, 0, 1e9,
        "Cost of a requeue to a job, to compute the expected gain; Slurm alone makes it wait 120 s")
    history_days: int = count(30, 0, 3650, "Days of past jobs read by sacct at start, if slurmdbd runs; 0: none")
    turn_s: float = seconds(5.0, 0.1, 3600, "Time between two reads of Slurm's queue")
    command_limit_s: float = seconds(30.0, 1, 600, "Time limit of each Slurm command")
    actions_per_turn: int = count(200, 1, 100000, "Maximum changes sent to Slurm in one turn")
    state_dir: Path = path("/var/lib/farside/slurm",
        "Folder for the service that jobs received, and for the log of what was or would be done")
    admin_socket: Path = path("/run/farside/slurm.sock", "Unix socket for `farside slurm status` and `farside admin`")
