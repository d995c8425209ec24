"""Settings of `farside manager`."""

from dataclasses import dataclass, field
from pathlib import Path

from farside.config.settings import (
    Kind,
    about,
    choice,
    count,
    endpoints,
    flag,
    fraction,
    path,
    seconds,
    size,
    tables,
    text,
    watts,
)
from farside.config.shared import JobMetricsSettings, LogSettings, PolicySettings, PowerSettings, TlsSettings

REST = "*"  # in place of a partition's nodes: all that no other has
AS_PARTITION = "partition"  # of a QOS: the job's partition says what is done about idle GPUs

# A table: one setting, one line. A meaning that does not fit is on the next line.
# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """One [[account]]: whom GPU time is charged to."""

    name: str = field(metadata=about(Kind.TEXT, "Name for `farside submit --account`"))
    users: str = text("", "Users who may charge this account, separated by commas")
    shares: int = count(1, 1, 10**6, "Share of the cluster, relative to the shares of other accounts")
    quota_gpus: int = count(0, 0, 10**6, "Maximum GPUs that jobs of this account hold at once; 0: no limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRow:
    """When GPUs of the jobs of a partition or a QOS are idle, and what follows."""

    idle_gpus_below_pct: int = count(5, 1, 50, "A GPU that is less busy than this percentage is idle")
    idle_gpus_after_s: float = seconds(1800, 1, 1e7, "A job is warned if all its GPUs are idle for this long")
    idle_gpus_grace_s: float = seconds(1800, 1, 1e7, "With idle_gpus = 'end': time from the warning to its end")


@dataclass(frozen=True, slots=True, kw_only=True)
class QosRow(IdleRow):
    """One [[qos]]: a quality of service."""

    name: str = field(metadata=about(Kind.TEXT, "Name for `farside submit --qos`"))
    priority: int = count(0, 0, 10**6, "Jobs of a QOS with a higher priority start before all others")
    max_gpus_per_user: int = count(0, 0, 10**6, "Maximum GPUs that jobs of one user hold at once; 0: no limit")
    max_jobs_per_user: int = count(0, 0, 10**6, "Maximum running jobs of one user; 0: no limit")
    may_preempt: bool = flag(True, "Jobs of this QOS may preempt jobs that come after them")
    accounts: str = text("", "Accounts that may use this QOS, separated by commas; empty: all")
    idle_gpus: str = choice(AS_PARTITION, "partition off warn end",
        "What happens to jobs that leave their GPUs idle; partition: what their partition says")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow(IdleRow):
    """One [[partition]]: nodes of its own, and the jobs that go there."""

    name: str = field(metadata=about(Kind.TEXT, "Name for `farside submit --partition`"))
    nodes: str = text("", "Its nodes, as n1,gpu[01-16]; *: all nodes that no other partition has")
    accounts: str = text("", "Accounts whose jobs may go there, separated by commas; empty: all")
    lend_grace_s: float = seconds(0, 0, 3600,
        "Idle nodes run others' preemptible jobs with at most this grace; 0: they are not lent")
    idle_gpus: str = choice("off", "off warn end",
        "Jobs that leave all their GPUs idle are warned (warn), or warned and then ended (end); off: neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig(TlsSettings, PolicySettings, PowerSettings, JobMetricsSettings, LogSettings):
    """Settings of a manager. Bytes and seconds; the names say which."""

    node: str = text("", "Name of this manager among several; empty: the host name")
    listen: tuple[str, ...] = endpoints(("unix:/run/farside/manager.sock", "tcp:127.0.0.1:7680"),
        "Endpoints for users and agents: unix:PATH, where the kernel proves the user; tcp:HOST:PORT, where a token or "
        "a certificate does; other machines need an address that is not loopback, and tls_cert")
    tls_client_ca: Path = path("", "CA certificates, PEM, with revocation lists, for clients; empty: none accepted")
    tls_client_required: bool = flag(False, "Refuse TCP clients without such a certificate, even with a token")
    plain_http: bool = flag(False, "Allow TCP without TLS beyond loopback: tokens are sent unencrypted")
    tokens_file: Path = path("/etc/farside/tokens.toml",
        "Tokens of nodes, operators and users, written by `farside token`")
    accept_unproved_agents: bool = flag(True,
        "Accept agents of the version before over ws://, which send their token to any program on the manager's port")
    token_submit: bool = flag(False, "Allow submission by token; only if all jobs run as one user, as in a sandbox")
    run_as: str = choice("submitter", "submitter starter",
        "User of a task, see agent.toml. starter: only the manager's own user may use the socket and submit (sandbox)")
    auth: str = choice("token", "token munge",
        "How users of other machines prove who they are. munge: token or MUNGE, by which they may submit")
    munge_socket: Path = path("/run/munge/munge.socket.2", "Socket of this machine's munged, for auth = 'munge'")
    operators: str = text("", "Users in addition to root who may see and change everything, separated by commas")
    store_url: str = text("sqlite:////var/lib/farside/manager.db",
        "Database: sqlite:////PATH, or postgresql://USER@HOST/NAME")
    keep_history_s: float = seconds(90 * 86400.0, 0, 1e10,
        "Log entries older than this move to the archive, and jobs that ended before are forgotten; 0: never")
    archive_dir: Path = path("", "Folder of the archive; empty: beside the SQLite file; with PostgreSQL: no archive")
    state_dir: Path = path("/run/farside/manager",
        "Folder made at start, for sockets between the manager's own processes")
    placement: str = text("consolidate", "Placement that chooses nodes; `farside sim run --help` names them; not count")
    placement_settings: str = text("", "Settings of the placement: NAME=VALUE, separated by semicolons")
    min_run_s: float = seconds(60.0, 0, 1e9, "Minimum time that a job runs before it may be preempted")
    reserve_after_s: float = seconds(3600.0, 0, 1e9, "Waiting time after which GPUs are reserved for a job; 0: never")
    account: tuple[AccountRow, ...] = tables(AccountRow,
        "[[account]] tables with name, users, shares, quota_gpus; none: a job is charged to the account that it names")
    qos: tuple[QosRow, ...] = tables(QosRow,
        "[[qos]] tables with name, priority, max_gpus_per_user, max_jobs_per_user, may_preempt, accounts, idle_gpus")
    partition: tuple[PartitionRow, ...] = tables(PartitionRow,
        "[[partition]] tables with name, nodes, accounts, lend_grace_s, idle_gpus; each has a queue; none: all are one")
    cpus_in_proportion: bool = flag(False,
        "A job that names no cpus_per_gpu gets its GPUs' part of the CPUs of a node that it may use")
    max_queued_jobs_per_user: int = count(20_000, 0, 10**8,
        "Maximum unfinished jobs of one user, array tasks included; operators may have more; 0: no limit")
    max_queued_bytes_per_user: int = size(64 << 20, 0, 1 << 40,
        "Maximum size of arguments and environments of one user's unfinished jobs, each submission once; 0: no limit")
    max_hourly_jobs_per_user: int = count(20_000, 0, 10**8,
        "Maximum jobs that one user submits within an hour, array tasks and cancelled jobs included, each hold, "
        "release and 16 KiB of arguments after the first counted as one more; operators may more; 0: no limit")
    default_account: str = text("", "Account of users who belong to none; empty: they may not submit")
    default_qos: str = text("", "QOS of jobs that name none")
    fair_share_half_life_s: float = seconds(7 * 86400.0, 0, 1e9,
        "Half-life of past use in fair share: accounts that used less of their share start first; 0: no fair share")
    gpu_power_w: float = watts(700.0, 0, 1e5,
        "Power of an allocated GPU for `farside usage`, if its node does not measure it")
    power_dry_run: bool = flag(False, "Only log what the power policy would do; switch and drain no node")
    power_drivers: Path = path("/etc/farside/power.toml",
        "Power driver of each node: a [node.NAME] table each; other nodes are always on")
    power_off_s: float = seconds(240.0, 1, 1e5, "Time after which a node that does not shut down is switched off hard")
    power_drain_s: float = seconds(1800.0, 1, 86400,
        "Time after which a node that is not empty stays on; borrowers of its memory have half of it to move pages")
    power_boot_s: float = seconds(900.0, 1, 1e5, "Time after which a node that does not boot has failed")
    power_poll_s: float = seconds(10.0, 0.1, 600, "Time between two checks of nodes, and between two requests to a BMC")
    rest_after_s: float = seconds(0.0, 0, 1e6,
        "Idle time after which a node that stays on turns down what its agent's rest names; 0: never")
    aggregation_loss_limit: float = fraction(0.1, 0.03, 0.9,
        "Share of its speed that a job may lose by shared aggregation before it is placed anew")
    aggregation_period_s: float = seconds(300.0, 1, 1e6,
        "Time after which Aggregators without jobs are given back, but for those needed on average")
    aggregation_keep_s: float = seconds(60.0, 0, 1e6,
        "Time for which a job without processes keeps its place at Aggregators, so that its next start goes on there")
    colocation_nodes: str = text("",
        "Nodes that run jobs with colocate = true alone, separated by commas; they must have an executor, and be alike")
    recall_s: float = seconds(60.0, 0, 86400,
        "Time that borrowers get to move pages; 0: jobs start without waiting")
    node_timeout_s: float = seconds(60.0, 1, 1e6, "Silence after which a node is lost and its jobs start again")
