"""What `farside manager` can be told."""

from dataclasses import dataclass, field
from pathlib import Path

from farside.config.settings import Kind, about

# fmt: off (a table: one setting, then what it means)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """One [[account]]: whom GPU time is charged to."""

    name: str = field(metadata=about(Kind.TEXT, "What `farside submit --account` calls it"))
    users: str = field(default="", metadata=about(Kind.TEXT, "Who may charge it, with commas"))
    shares: int = field(
        default=1, metadata=about(Kind.COUNT, "Its part of the cluster, beside those of the others", low=1, high=10**6)
    )
    quota_gpus: int = field(
        default=0,
        metadata=about(Kind.COUNT, "The most GPUs that its jobs hold at once; 0: any number", low=0, high=10**6),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QosRow:
    """One [[qos]]: a quality of service."""

    name: str = field(metadata=about(Kind.TEXT, "What `farside submit --qos` calls it"))
    priority: int = field(
        default=0, metadata=about(Kind.COUNT, "Its jobs go before all of a lower one", low=0, high=10**6)
    )
    max_gpus_per_user: int = field(
        default=0,
        metadata=about(Kind.COUNT, "The most GPUs that one user's jobs hold at once; 0: any number", low=0, high=10**6),
    )
    max_jobs_per_user: int = field(default=0, metadata=about(Kind.COUNT, "The same of running jobs", low=0, high=10**6))
    may_preempt: bool = field(
        default=True, metadata=about(Kind.FLAG, "Its jobs may take GPUs of jobs that stand behind them")
    )
    accounts: str = field(default="", metadata=about(Kind.TEXT, "Whose jobs may have it, with commas; empty: all"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    """Settings of a manager. Bytes and seconds; the names say which."""

    node: str = field(default="", metadata=about(Kind.TEXT, "Name of this manager among several; empty: the host name"))
    listen: tuple[str, ...] = field(
        default=("unix:/run/farside/manager.sock", "tcp:127.0.0.1:7680"),
        metadata=about(
            Kind.ENDPOINTS,
            "Where users and agents reach it: unix:PATH, where the kernel proves who a user is, and tcp:HOST:PORT, "
            "where a token or a certificate says so; other machines need an address that is not loopback, and tls_cert",
        ),
    )
    tls_cert: Path = field(
        default=Path(), metadata=about(Kind.PATH, "Certificate for TCP, PEM, with its chain; empty: no TLS")
    )
    tls_key: Path = field(default=Path(), metadata=about(Kind.PATH, "The certificate's private key, PEM"))
    tls_client_ca: Path = field(
        default=Path(),
        metadata=about(
            Kind.PATH, "CAs, PEM, whose certificates say who somebody is, and their revocation lists; empty: none do"
        ),
    )
    tls_client_required: bool = field(
        default=False,
        metadata=about(Kind.FLAG, "Over TCP nobody comes in without such a certificate, not even by token"),
    )
    plain_http: bool = field(
        default=False,
        metadata=about(Kind.FLAG, "Listen at addresses that are not loopback without TLS: tokens cross in the clear"),
    )
    tokens_file: Path = field(
        default=Path("/etc/farside/tokens.toml"),
        metadata=about(Kind.PATH, "Tokens of nodes, operators and users, as `farside token` writes them"),
    )
    token_submit: bool = field(
        default=False,
        metadata=about(
            Kind.FLAG, "Jobs may be submitted by token; only where all jobs run as one user, as in a sandbox"
        ),
    )
    run_as: str = field(
        default="submitter",
        metadata=about(
            Kind.CHOICE,
            "As agents' run_as. starter: only the manager's own user reaches the socket and submits there (sandbox)",
            choices=("submitter", "starter"),
        ),
    )
    auth: str = field(
        default="token",
        metadata=about(
            Kind.CHOICE,
            "What users of other machines are known by: token; or munge besides, which proves their uid, so that they "
            "may submit",
            choices=("token", "munge"),
        ),
    )
    munge_socket: Path = field(
        default=Path("/run/munge/munge.socket.2"),
        metadata=about(Kind.PATH, "Where this machine's munged is asked, with auth = 'munge'"),
    )
    operators: str = field(
        default="", metadata=about(Kind.TEXT, "Users besides root who may see and change everything, with commas")
    )
    store_url: str = field(
        default="sqlite:////var/lib/farside/manager.db",
        metadata=about(Kind.TEXT, "The database: sqlite:////PATH, or postgresql://USER@HOST/NAME"),
    )
    keep_history_s: float = field(
        default=90 * 86400.0,
        metadata=about(
            Kind.SECONDS,
            "What is older leaves the log for the archive, jobs that were over by then are known no more; 0: never",
            low=0,
            high=1e10,
        ),
    )
    archive_dir: Path = field(
        default=Path(),
        metadata=about(
            Kind.PATH, "Folder of the archive; empty: beside the SQLite file, and with PostgreSQL entries stay"
        ),
    )
    state_dir: Path = field(
        default=Path("/run/farside/manager"),
        metadata=about(Kind.PATH, "Folder made at the start, for the sockets between the manager's own processes"),
    )
    policy: str = field(
        default="las", metadata=about(Kind.TEXT, "Who goes first; a policy as `farside sim run --policy` knows them")
    )
    policy_settings: str = field(
        default="", metadata=about(Kind.TEXT, "Settings of the policy, NAME=VALUE, with semicolons between")
    )
    placement: str = field(
        default="consolidate",
        metadata=about(Kind.TEXT, "Where jobs go; a placement as `farside sim run --placement` knows them, but count"),
    )
    min_run_s: float = field(
        default=60.0,
        metadata=about(Kind.SECONDS, "A job that was started is not preempted for so long", low=0, high=1e9),
    )
    reserve_after_s: float = field(
        default=3600.0,
        metadata=about(Kind.SECONDS, "GPUs are held for a job that has waited so long; 0: never", low=0, high=1e9),
    )
    account: tuple[AccountRow, ...] = field(
        default=(),
        metadata=about(
            Kind.RULES,
            "[[account]] tables with name, users, shares, quota_gpus; none: jobs are charged to whom they name",
            row=AccountRow,
        ),
    )
    qos: tuple[QosRow, ...] = field(
        default=(),
        metadata=about(
            Kind.RULES,
            "[[qos]] tables with name, priority, max_gpus_per_user, max_jobs_per_user, may_preempt, accounts",
            row=QosRow,
        ),
    )
    max_queued_jobs_per_user: int = field(
        default=20_000,
        metadata=about(
            Kind.COUNT,
            "The most jobs of one user that are not over, those of arrays too; operators may have more; 0: any number",
            low=0,
            high=10**8,
        ),
    )
    max_queued_bytes_per_user: int = field(
        default=64 << 20,
        metadata=about(
            Kind.BYTES,
            "The same of what their arguments and environments take, once for each submission; 0: any",
            low=0,
            high=1 << 40,
        ),
    )
    max_hourly_jobs_per_user: int = field(
        default=20_000,
        metadata=about(
            Kind.COUNT,
            "The most jobs that one user submits within an hour, those of arrays and cancelled ones too; "
            "operators may submit more; 0: any number",
            low=0,
            high=10**8,
        ),
    )
    default_account: str = field(
        default="", metadata=about(Kind.TEXT, "Account of users who belong to none; empty: they may not submit")
    )
    default_qos: str = field(default="", metadata=about(Kind.TEXT, "QOS of jobs that name none"))
    fair_share_half_life_s: float = field(
        default=7 * 86400.0,
        metadata=about(
            Kind.SECONDS,
            "Accounts that have used less of their share go first; what was used fades by half in so long; 0: no",
            low=0,
            high=1e9,
        ),
    )
    gpu_power_w: float = field(
        default=700.0,
        metadata=about(
            Kind.WATTS,
            "What a GPU that is held draws, for `farside usage`, where its node does not measure it",
            low=0,
            high=1e5,
        ),
    )
    power: str = field(
        default="none",
        metadata=about(
            Kind.CHOICE,
            "What lets idle nodes sleep; see power.md",
            choices=("none", "ces", "rule", "vanilla"),
        ),
    )
    power_dry_run: bool = field(
        default=False,
        metadata=about(Kind.FLAG, "No node is switched or closed; the log says what would be done, as if it were"),
    )
    power_settings: str = field(
        default="", metadata=about(Kind.TEXT, "Settings of that policy, NAME=VALUE, with semicolons between")
    )
    power_drivers: Path = field(
        default=Path("/etc/farside/power.toml"),
        metadata=about(Kind.PATH, "How each node is switched, a table [node.NAME] each; others are always on"),
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
    power_off_s: float = field(
        default=240.0,
        metadata=about(Kind.SECONDS, "A node that has not shut down after so long is cut off", low=1, high=1e5),
    )
    power_drain_s: float = field(
        default=1800.0,
        metadata=about(
            Kind.SECONDS,
            "A node that is not empty after so long stays on; borrowers of its memory get half of it to move",
            low=1,
            high=86400,
        ),
    )
    power_boot_s: float = field(
        default=900.0,
        metadata=about(Kind.SECONDS, "A node that has not booted after so long has failed", low=1, high=1e5),
    )
    power_poll_s: float = field(
        default=10.0,
        metadata=about(Kind.SECONDS, "Time between two looks, and two questions to a BMC", low=0.1, high=600),
    )
    always_on: str = field(default="", metadata=about(Kind.TEXT, "Nodes that never sleep, with commas"))
    idle_w: int = field(
        default=800,
        metadata=about(Kind.COUNT, "What an idle node draws, in watts, for the energy saved", low=0, high=1e5),
    )
    node_timeout_s: float = field(
        default=60.0,
        metadata=about(
            Kind.SECONDS,
            "A node that is silent for so long is lost, and its jobs start elsewhere",
            low=1,
            high=1e6,
        ),
    )
    metrics_listen: str = field(
        default="", metadata=about(Kind.ADDRESS, "HOST:PORT of the Prometheus metrics; empty: none")
    )
    log_level: str = field(
        default="info",
        metadata=about(
            Kind.CHOICE, "The least important message that is logged", choices=("debug", "info", "warning", "error")
        ),
    )
