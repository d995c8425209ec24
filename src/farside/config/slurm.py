"""What `farside slurm` can be told."""

from dataclasses import dataclass, field
from pathlib import Path

from farside.config.settings import Kind, about

# fmt: off (a table: one setting, then what it means)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig:
    """Settings of the engine that drives a Slurm. Seconds; the names say which."""

    node: str = field(default="", metadata=about(Kind.TEXT, "Name of this engine; empty: the host name"))
    partitions: str = field(
        default="",
        metadata=about(
            Kind.TEXT, "Slurm's partitions whose GPU jobs are scheduled, with commas; no other job is touched"
        ),
    )
    slurm_conf: Path = field(
        default=Path(), metadata=about(Kind.PATH, "Slurm's own settings; empty: SLURM_CONF, or where Slurm looks")
    )
    policy: str = field(
        default="las", metadata=about(Kind.TEXT, "Who goes first; a policy as `farside sim run --policy` knows them")
    )
    policy_settings: str = field(
        default="", metadata=about(Kind.TEXT, "Settings of the policy, NAME=VALUE, with semicolons between")
    )
    placement: str = field(
        default="consolidate",
        metadata=about(Kind.TEXT, "How the cycle packs jobs onto nodes; where they really go is Slurm's choice"),
    )
    order_by: str = field(
        default="priority",
        metadata=about(
            Kind.CHOICE,
            "What Slurm is told of the order: priorities, as an operator; or nice values, which any user may raise for "
            "his own jobs",
            choices=("priority", "nice"),
        ),
    )
    preempt: bool = field(
        default=False,
        metadata=about(
            Kind.FLAG, "Running jobs that Slurm may requeue are requeued for those before them, and begin again"
        ),
    )
    gate: bool = field(
        default=False, metadata=about(Kind.FLAG, "Jobs are held until it is their turn; else only their order is set")
    )
    min_run_s: float = field(
        default=600.0,
        metadata=about(Kind.SECONDS, "A job that was started is not requeued for so long", low=0, high=1e9),
    )
    reserve_after_s: float = field(
        default=0.0,
        metadata=about(
            Kind.SECONDS, "A job that has waited so long goes before all others; 0: none does", low=0, high=1e9
        ),
    )
    requeue_cost_s: float = field(
        default=120.0,
        metadata=about(
            Kind.SECONDS,
            "For the expected gain: what a requeue costs a job; Slurm alone makes it wait 120 s",
            low=0,
            high=1e9,
        ),
    )
    history_days: int = field(
        default=30,
        metadata=about(
            Kind.COUNT,
            "Jobs of so many days are read by sacct at the start, where slurmdbd runs; 0: none",
            low=0,
            high=3650,
        ),
    )
    turn_s: float = field(
        default=5.0, metadata=about(Kind.SECONDS, "Time between two looks at Slurm", low=0.1, high=3600)
    )
    command_limit_s: float = field(
        default=30.0, metadata=about(Kind.SECONDS, "Time for each of Slurm's commands", low=1, high=600)
    )
    actions_per_turn: int = field(
        default=200, metadata=about(Kind.COUNT, "Changes that Slurm is told in one turn at most", low=1, high=100000)
    )
    power: str = field(
        default="none",
        metadata=about(
            Kind.CHOICE,
            "What lets idle nodes sleep, by Slurm's SuspendProgram",
            choices=("none", "ces", "rule", "vanilla"),
        ),
    )
    power_settings: str = field(
        default="", metadata=about(Kind.TEXT, "Settings of that policy, NAME=VALUE, with semicolons between")
    )
    power_step_s: float = field(
        default=600.0, metadata=about(Kind.SECONDS, "Time between two decisions of that policy", low=1, high=86400)
    )
    power_floor: int = field(
        default=1, metadata=about(Kind.COUNT, "Nodes that stay on in any case", low=0, high=1000000)
    )
    power_min_on_s: float = field(
        default=600.0, metadata=about(Kind.SECONDS, "A node that came up stays on for so long", low=0, high=1e9)
    )
    always_on: str = field(default="", metadata=about(Kind.TEXT, "Nodes that never sleep, with commas"))
    idle_w: int = field(
        default=800,
        metadata=about(Kind.COUNT, "What an idle node draws, in watts, for the energy saved", low=0, high=1e5),
    )
    state_dir: Path = field(
        default=Path("/var/lib/farside/slurm"),
        metadata=about(Kind.PATH, "Folder for what jobs were served, and for what was done or would have been"),
    )
    admin_socket: Path = field(
        default=Path("/run/farside/slurm.sock"),
        metadata=about(Kind.PATH, "Unix socket for `farside slurm status` and `farside admin`"),
    )
    log_level: str = field(
        default="info",
        metadata=about(
            Kind.CHOICE, "The least important message that is logged", choices=("debug", "info", "warning", "error")
        ),
    )
