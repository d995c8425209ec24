"""Settings of `farside agent`, the node agent."""

from dataclasses import dataclass
from pathlib import Path

from farside.config.settings import choice, count, flag, path, seconds, size, text
from farside.config.shared import JobMetricsSettings, LogSettings, NodeSettings, ProcSettings, TlsSettings
from farside.units import TIB

# A table: one setting, one line. A meaning that does not fit is on the next line.
# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(NodeSettings, TlsSettings, ProcSettings, JobMetricsSettings, LogSettings):
    """Settings of a node agent. Bytes and seconds; the names say which."""

    manager: str = text("unix:/run/farside/manager.sock",
        "Address of the manager: unix:PATH on its own machine, wss://HOST:PORT with TLS, or ws://HOST:PORT")
    token_file: Path = path("/etc/farside/agent.token",
        "Token of this node, readable by its owner only; empty: none, see tls_cert")
    accept_unproved_manager: bool = flag(False,
        "Obey a manager over ws:// that cannot prove itself, as those of the version before; it gets the token")
    ca_file: Path = path("", "CA certificates that may sign the manager's certificate; empty: those of the system")
    state_dir: Path = path("/var/lib/farside/agent", "Folder with the records of tasks, which survive a restart")
    run_as: str = choice("submitter", "submitter starter",
        "User of a task. submitter: the user who submitted the job; starter: the user who started the agent (sandbox)")
    features: str = text("", "What this node has, in names with commas, for jobs that ask for that: ib,nvme")
    rack: str = text("",
        "Rack of this node, where jobs are kept together; lldp: the switches that lldpd names; empty: none")
    rdma_domain: str = text("",
        "RDMA fabric of this node, which no job leaves; empty: by the prefixes of its InfiniBand subnets")
    users: str = text("", "Users whose tasks may run here, separated by commas; empty: all except uid 0")
    cgroup: str = text("auto",
        "Parent folder (cgroup v2) of the cgroups of tasks; auto: below the agent's own; off: no cgroups and no limits")
    task_processes: int = count(32_768, 0, 4_194_304, "Maximum processes and threads in a task's cgroup; 0: no limit")
    task_memory: str = choice("warn", "limit warn off",
        "Memory of a task whose job names none. limit: task_memory_bytes; warn: no limit, a warning above that; off")
    task_memory_bytes: int = size(0, 0, 1024 * TIB,
        "Memory for each GPU of a task whose job names none; 0: the GPU's share of all but memory_reserve_bytes")
    fence_s: float = seconds(0.0, 0, 86400,
        "Tasks end so long after the manager was last heard; it starts their jobs elsewhere only later; 0: never")
    on_stop: str = choice("keep", "keep end", "What happens to tasks when the agent stops: keep (they run on) or end")
    prolog: str = text("", "Program with arguments to run before each task; if it fails, the node drains; empty: none")
    epilog: str = text("", "Program with arguments to run after each task, before its GPUs are free; empty: none")
    hook_user: str = text("", "User that prolog and epilog run as; empty: the user of the agent")
    hook_limit_s: float = seconds(60.0, 0.1, 3600, "Time limit of prolog and epilog; one that takes longer has failed")
    power_off: str = text("", "Program with arguments that shuts this node down to save power; empty: never")
    rest: str = text("",
        "What this node turns down while it stays on and has nothing to do, where the manager's rest_after_s lets it: "
        "cpu (governor powersave), gpu (lowest power cap), separated by commas; empty: nothing")
    declared_gpus: int = count(-1, -1, 64, "Number of GPUs to report; -1: the GPUs that NVML or amdsmi finds")
    nvlink_errors_per_hour: int = count(1000, 0, 10**9,
        "NVLink errors within an hour above which a GPU is unhealthy, as it is with a link down; 0: ignore both")
    rdma_errors_per_hour: int = count(1000, 0, 10**9,
        "RDMA port errors within an hour above which the node drains, or after it was down; 0: only while it is down")
    gpu_model: str = text("declared", "Model of the GPUs of declared_gpus")
    declared_gpu_files: str = text("",
        "Device files of declared_gpus for their tasks alone: comma between GPUs, + between files of one; empty: none")
    gpu_fence: str = choice("auto", "auto on off",
        "The kernel closes other GPUs to a task. auto: where it can; on: the agent ends where it cannot; off: never")
    memory_total_bytes: int = size(0, 0, 1024 * TIB, "Memory to report; 0: that of the machine")
    memory_reserve_bytes: int = size(0, 0, 1024 * TIB, "Memory that jobs never get; 0: 1/16 of memory_total_bytes")
    daemon_socket: Path = path("/run/farside/daemon.sock",
        "Admin socket of this node's donor: memory that it lends counts as free; empty: none")
    blockdev_socket: str = text("/run/farside/blockdev.sock",
        "Admin sockets of this node's borrowers, separated by commas: where their pages are is shown; empty: none")
    memory_orders: str = choice("all", "all lend none",
        "Which orders of a manager about memory count here (farside node set): all, those about lend alone, or none")
    lend: str = text("on",
        "The most that this node lends, whatever a manager says. on: what its donor's settings allow; off; or 64GiB")
    swap: str = text("keep",
        "Size of this node's swap while no manager orders one. keep: as it is; off; or a size: 64GiB")
    swap_device: str = text("swap0",
        "Device that the agent has farside-swap@NAME attach and detach where swap is ordered or set; empty: none")
    donor_control: str = text("", "tcp:HOST:PORT of this node's donor for borrowers; empty: where the donor listens")
    peers_file: Path = path("/var/lib/farside/peers.toml",
        "List of donors, written for this node's borrower as the manager knows them; empty: none")
    aggregator_socket: Path = path("/run/farside/aggregator.sock",
        "Admin socket of this node's Aggregator, whose cores all jobs of the cluster may share; empty: none")
    aggregation_socket: Path = path("/run/farside/aggregation.sock",
        "Unix socket by which tasks here reach shared aggregation; empty: none, and this node takes no part in it")
    executor_socket: Path = path("/run/farside/executor.sock",
        "Unix socket of this node's executor, at which training tasks take turns; empty: they take none")
    executor_admin_socket: Path = path("/run/farside/executor-admin.sock",
        "Admin socket of this node's executor: the manager shows who takes turns; empty: it does not")
    spill_dir: Path = path("",
        "Folder on a disk of this node for input of co-located jobs that does not fit in their memory; empty: none")
    report_period_s: float = seconds(5.0, 0.1, 300, "Time between two reports while no task changes")
    reconnect_s: float = seconds(15.0, 0.1, 600, "Maximum wait between two attempts to reach the manager")
    admin_socket: Path = path("/run/farside/agent.sock", "Unix socket for `farside status` and `farside admin`")
