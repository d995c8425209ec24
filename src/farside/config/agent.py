"""What `farside agent`, the node agent, can be told."""

from dataclasses import dataclass, field
from pathlib import Path

from farside.config.settings import Kind, about
from farside.units import TIB

# fmt: off (a table: one setting, then what it means)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of a node agent. Bytes and seconds; the names say which."""

    node: str = field(
        default="", metadata=about(Kind.TEXT, "Name of this machine in the cluster; empty: its host name")
    )
    manager: str = field(
        default="ws://127.0.0.1:7680",
        metadata=about(Kind.TEXT, "Where the manager is: ws://HOST:PORT, or wss://HOST:PORT with TLS"),
    )
    token_file: Path = field(
        default=Path("/etc/farside/agent.token"),
        metadata=about(
            Kind.PATH, "This node's token, of role node; readable by its owner only; empty: none, see tls_cert"
        ),
    )
    ca_file: Path = field(
        default=Path(""),
        metadata=about(Kind.PATH, "Certificates that may sign the manager's; empty: the system's"),
    )
    tls_cert: Path = field(
        default=Path(), metadata=about(Kind.PATH, "This node's certificate for the manager, PEM; empty: none")
    )
    tls_key: Path = field(default=Path(), metadata=about(Kind.PATH, "The certificate's private key, PEM"))
    state_dir: Path = field(
        default=Path("/var/lib/farside/agent"),
        metadata=about(Kind.PATH, "Where tasks are written down, so that they outlive the agent"),
    )
    run_as: str = field(
        default="submitter",
        metadata=about(
            Kind.CHOICE,
            "submitter: a task runs as the user who submitted it; starter: all as whoever starts the agent (sandbox)",
            choices=("submitter", "starter"),
        ),
    )
    users: str = field(
        default="",
        metadata=about(Kind.TEXT, "Users whose tasks run here, with commas between; empty: all but uid 0"),
    )
    cgroup: str = field(
        default="auto",
        metadata=about(
            Kind.TEXT,
            "Folder of cgroup v2 for tasks' own; auto: below the agent's own; off: process trees without limits",
        ),
    )
    task_processes: int = field(
        default=32_768,
        metadata=about(
            Kind.COUNT,
            "The most processes and threads of one task, where it has a cgroup; 0: any number",
            low=0,
            high=4_194_304,
        ),
    )
    on_stop: str = field(
        default="keep",
        metadata=about(
            Kind.CHOICE,
            "What becomes of tasks when the agent is told to stop: keep (they run on) or end",
            choices=("keep", "end"),
        ),
    )
    prolog: str = field(
        default="",
        metadata=about(
            Kind.TEXT, "Program with arguments, run before each task; if it fails, the node drains; empty: none"
        ),
    )
    epilog: str = field(
        default="", metadata=about(Kind.TEXT, "The same, run after each task, before its GPUs are given on")
    )
    hook_user: str = field(default="", metadata=about(Kind.TEXT, "As whom prolog and epilog run; empty: as the agent"))
    hook_limit_s: float = field(
        default=60.0,
        metadata=about(Kind.SECONDS, "A prolog or epilog that takes longer has failed", low=0.1, high=3600),
    )
    power_off: str = field(
        default="",
        metadata=about(
            Kind.TEXT,
            "Program with arguments that shuts this node down when the manager lets it sleep; empty: none does",
        ),
    )
    declared_gpus: int = field(
        default=-1,
        metadata=about(Kind.COUNT, "GPUs that this node is said to have; -1: those that NVML finds", low=-1, high=64),
    )
    nvlink_errors_per_hour: int = field(
        default=1000,
        metadata=about(
            Kind.COUNT,
            "A GPU with more NVLink errors within an hour, or a link that is down, is not healthy; 0: whatever they do",
            low=0,
            high=10**9,
        ),
    )
    rdma_errors_per_hour: int = field(
        default=1000,
        metadata=about(
            Kind.COUNT,
            "A node drains when an RDMA port has more errors within an hour, or was down; 0: only while one is down",
            low=0,
            high=10**9,
        ),
    )
    gpu_model: str = field(default="declared", metadata=about(Kind.TEXT, "Model of declared GPUs"))
    memory_total_bytes: int = field(
        default=0,
        metadata=about(
            Kind.BYTES, "Memory that this node is said to have; 0: what the machine has", low=0, high=1024 * TIB
        ),
    )
    memory_reserve_bytes: int = field(
        default=0,
        metadata=about(
            Kind.BYTES, "Memory that jobs never get; 0: one sixteenth of the node's", low=0, high=1024 * TIB
        ),
    )
    daemon_socket: Path = field(
        default=Path("/run/farside/daemon.sock"),
        metadata=about(Kind.PATH, "Admin socket of this node's donor: what it has lent counts as free; empty: none"),
    )
    donor_control: str = field(
        default="",
        metadata=about(
            Kind.TEXT,
            "Where others reach this node's donor, tcp:HOST:PORT; empty: where the donor says it listens",
        ),
    )
    peers_file: Path = field(
        default=Path("/var/lib/farside/peers.toml"),
        metadata=about(
            Kind.PATH, "Peers file for this node's borrower, kept as the manager knows the donors; empty: none"
        ),
    )
    report_period_s: float = field(
        default=5.0,
        metadata=about(Kind.SECONDS, "Time between two reports while no task changes", low=0.1, high=300),
    )
    reconnect_s: float = field(
        default=15.0,
        metadata=about(Kind.SECONDS, "Longest wait between two attempts to reach the manager", low=0.1, high=600),
    )
    proc_root: Path = field(default=Path("/proc"), metadata=about(Kind.PATH, "Where meminfo and pressure are read"))
    metrics_listen: str = field(
        default="", metadata=about(Kind.ADDRESS, "HOST:PORT of the Prometheus metrics; empty: none")
    )
    admin_socket: Path = field(
        default=Path("/run/farside/agent.sock"), metadata=about(Kind.PATH, "Unix socket that `farside status` asks")
    )
    log_level: str = field(
        default="info",
        metadata=about(
            Kind.CHOICE, "The least important message that is logged", choices=("debug", "info", "warning", "error")
        ),
    )
