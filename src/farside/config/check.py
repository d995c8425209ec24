"""Rules between settings: each broken rule is one message with the setting to change."""

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from farside.config.agent import AgentConfig
from farside.config.aggregator import AggregatorConfig
from farside.config.blockdev import BlockdevConfig
from farside.config.daemon import DaemonConfig
from farside.config.hostlist import expand
from farside.config.manager import AS_PARTITION, REST, ManagerConfig, PartitionRow, QosRow
from farside.config.shared import TlsSettings
from farside.config.slurm import SlurmConfig
from farside.endpoint import is_near, is_on_network, parse_endpoint, socket_path
from farside.geometry import GRANULE_BYTES, SLABS_MAX
from farside.units import MIB, format_bytes, parse_bound

# As an instance of a unit without escaping: a dash would stand for a slash.
UNIT_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,62}")
NODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")  # what the control protocol lets a node be called
NODE_WORDS = "up to 64 letters, digits and any of . _ : - make one"
USER = re.compile(r"[A-Za-z0-9_.-]{1,64}\$?")
USERS_MAX, FEATURES_MAX = 1024, 64  # what the agents' protocol lets a node tell
LABEL_CHARS_MAX = 58  # of a rack or an RDMA fabric: with rack: or rdma: before it it is a feature
# Memory files bear the device's name; memfd_create(2) takes 249 bytes, and 16 of them are ours.
NAME_BYTES_MAX = 233
SLABS_SPARE = 4096  # of them, for slabs that move: each stands twice for a moment

# (setting, what is wrong; what to do)
Problem = tuple[str, str]


def daemon_problems(config: DaemonConfig) -> Iterator[Problem]:
    """What is wrong with a donor's settings taken together."""
    if not config.listen:
        yield "listen", "is empty, so that no borrower can reach this donor; name at least one endpoint"
    yield from _identity_problems(config)
    if config.rdma_address and not _is_ip_address(config.rdma_address):
        yield "rdma_address", f"'{config.rdma_address}' is no IP address; give the RDMA network device's, not a name"
    yield from _power_of_two("slab_bytes", config.slab_bytes)
    total = config.memory_total_bytes
    if total and config.headroom_bytes >= total:
        problem = f"keeps all of memory_total_bytes ({format_bytes(total)}) free; lower it, or nothing is ever lent"
        yield "headroom_bytes", problem
    if config.evict_deadline_s > config.migrate_deadline_s:
        yield "evict_deadline_s", "is longer than migrate_deadline_s; dropping a slab is the quicker way, shorten it"
    if config.migrate_deadline_s > config.lease_expiry_s:
        yield "migrate_deadline_s", "is longer than lease_expiry_s; a lease must outlive the time to move it"


def blockdev_problems(config: BlockdevConfig) -> Iterator[Problem]:
    """What is wrong with a borrower's settings taken together."""
    if not config.listen:
        yield "listen", "is empty, so that no client can reach the device; name at least one endpoint"
    if not config.name:
        yield "name", "is empty; give the device a name"
    if len(config.name.encode()) > NAME_BYTES_MAX:
        yield "name", f"is longer than {NAME_BYTES_MAX} bytes; give the device a shorter name"
    yield from _identity_problems(config)
    if config.size_bytes % GRANULE_BYTES:
        down = config.size_bytes // GRANULE_BYTES * GRANULE_BYTES
        yield "size_bytes", f"is not a multiple of 2 MiB; {down} is the nearest below, {down + GRANULE_BYTES} above"
    yield from _power_of_two("slab_bytes", config.slab_bytes)
    yield from _slab_number_problems(config)
    yield from _power_of_two("pending_bytes", config.pending_bytes)
    if config.hedge_s > config.deadline_s:
        yield "hedge_s", "is longer than deadline_s; a second copy is of use only before the donor is suspect"
    yield from _protection_problems(config)
    yield from _blockdev_tls_problems(config)
    for number, rule in enumerate(config.fault, 1):
        if rule.kind == "delay" and rule.delay_s == 0:
            yield "fault", f"table {number}: kind 'delay' needs delay_s above 0"
        if rule.donor == "disk" and rule.kind not in ("delay", "error", "short"):
            yield "fault", f"table {number}: the disk knows delay, error and short only"


def _blockdev_tls_problems(config: BlockdevConfig) -> Iterator[Problem]:
    yield from _pair_problems(config)
    if config.tls_cert.is_absolute() and not config.tls_client_ca.is_absolute():
        yield "tls_client_ca", "is empty, so that tls_cert would let in everybody; name the CA of clients' certificates"
    if config.tls_client_ca.is_absolute() and not config.tls_cert.is_absolute():
        yield "tls_client_ca", "is of use with tls_cert only; name the device's own certificate too"
    if config.has_tls and config.listen_unproved:
        yield "listen_unproved", "lets everybody in without TLS; leave it out, or the settings of TLS"


def agent_problems(config: AgentConfig) -> Iterator[Problem]:
    """What is wrong with a node agent's settings taken together."""
    yield from _identity_problems(config)
    if not _is_manager_url(config.manager):
        yield (
            "manager",
            f"'{config.manager:.70}' is no manager's address; write unix:PATH, wss://HOST:PORT or ws://HOST:PORT",
        )
    yield from _agent_tls_problems(config)
    if not config.state_dir.is_absolute():
        yield "state_dir", "is empty; name the folder that tasks are written down in"
    else:
        yield from _socket_problems("state_dir", f"{config.state_dir}/agent.notify")
    if not (config.cgroup in ("auto", "off") or config.cgroup.startswith("/")):
        yield "cgroup", f"'{config.cgroup:.70}' is neither auto, off nor a path from the root"
    if config.declared_gpu_files and config.declared_gpus < 0:
        yield "declared_gpu_files", "names files of GPUs, and declared_gpus none; name their number there"
    if config.donor_control and not is_on_network(config.donor_control):
        yield "donor_control", f"'{config.donor_control:.70}' is no address on a network; write tcp:HOST:PORT"
    for path in names_in(config.blockdev_socket):
        if not path.startswith("/"):
            yield "blockdev_socket", f"'{path:.70}' is no path from the root; several stand with commas between"
    yield from _memory_problems(config)
    if unknown := [name for name in names_in(config.rest) if name not in ("cpu", "gpu")]:
        yield "rest", f"'{unknown[0]:.70}' can't be turned down; write cpu, gpu, or both with a comma"
    features = set(names_in(config.features))
    for name in sorted(features):
        if not NODE.fullmatch(name):
            yield "features", f"'{name:.70}' is no name; {NODE_WORDS}"
    for key in ("rack", "rdma_domain"):
        name = getattr(config, key)
        if name and not (NODE.fullmatch(name) and len(name) <= LABEL_CHARS_MAX):
            yield key, f"'{name:.70}' is no name; up to {LABEL_CHARS_MAX} letters, digits and any of . _ : - make one"
    if len(features) > FEATURES_MAX:
        yield "features", f"has {len(features)} names, and a node can tell {FEATURES_MAX}; leave some out"
    for user in filter(None, config.users.split(",")):
        if not USER.fullmatch(user.strip()):
            yield "users", f"'{user.strip():.70}' is no user's name; write them with commas between"
    names = len(names_in(config.users))
    if names > USERS_MAX:
        yield "users", f"has {names} names, and a node can tell {USERS_MAX}; leave it empty, so that all may run here"


def _memory_problems(config: AgentConfig) -> Iterator[Problem]:
    try:
        parse_bound(config.lend)
    except ValueError as error:
        yield "lend", str(error)
    if config.swap_device and not UNIT_PART.fullmatch(config.swap_device):
        yield "swap_device", f"'{config.swap_device:.70}' is no name of a device: letters, digits, _ and . alone"
    if config.swap == "keep":
        return
    try:
        size_bytes = None if config.swap == "on" else parse_bound(config.swap)
    except ValueError:
        size_bytes = None
    if size_bytes is None:
        yield "swap", f"is '{config.swap:.70}'; write keep, off or a size such as 64GiB"
    elif 0 < size_bytes < GRANULE_BYTES:
        yield "swap", f"is {format_bytes(size_bytes)}, and less than {format_bytes(GRANULE_BYTES)} is none; write off"
    elif not config.swap_device:
        yield "swap", "is set, and swap_device is empty; name the device that is to be attached"


def _is_manager_url(text: str) -> bool:
    try:
        if text.startswith("unix:"):
            return isinstance(parse_endpoint(text), str)
        parts = urlsplit(text)
        return parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        return False


def _agent_tls_problems(config: AgentConfig) -> Iterator[Problem]:
    yield from _pair_problems(config)
    if not (config.token_file.is_absolute() or config.tls_cert.is_absolute() or config.manager.startswith("unix:")):
        yield "token_file", "is empty, and so is tls_cert; name one of them, or the manager knows nobody here"
    if config.tls_cert.is_absolute() and urlsplit(config.manager).scheme != "wss":
        yield "tls_cert", "is shown over TLS only; write wss:// in manager, or leave it out"


def _pair_problems(config: TlsSettings) -> Iterator[Problem]:
    if config.tls_cert.is_absolute() != config.tls_key.is_absolute():
        missing = "tls_key" if config.tls_cert.is_absolute() else "tls_cert"
        yield missing, "is empty, and the other of the two is not; name both files, or neither"


def manager_problems(config: ManagerConfig) -> Iterator[Problem]:
    """What is wrong with a manager's settings taken together."""
    if not config.listen:
        yield "listen", "is empty, so that nobody can reach the manager; name at least one endpoint"
    yield from _manager_tls_problems(config)
    if not NODE.fullmatch(config.node):
        yield "node", f"'{config.node:.70}' is no manager's name; {NODE_WORDS}"
    yield from _tenancy_problems(config)
    yield from _partition_problems(config)
    if not config.tokens_file.is_absolute():
        yield "tokens_file", f"'{config.tokens_file}' is no path from the root; one that is not there means no tokens"
    if not config.state_dir.is_absolute():
        yield "state_dir", "must be an absolute path"
    else:
        yield from _socket_problems("state_dir", f"{config.state_dir}/brain.sock")


def _manager_tls_problems(config: ManagerConfig) -> Iterator[Problem]:
    yield from _pair_problems(config)
    if config.tls_client_ca.is_absolute() and not config.tls_cert.is_absolute():
        yield "tls_client_ca", "is of use with tls_cert only; name the manager's own certificate too"
    if config.tls_client_required and not config.tls_client_ca.is_absolute():
        yield "tls_client_required", "is of use with tls_client_ca only; name the CA of these certificates"
    if config.tls_cert.is_absolute() or config.plain_http:
        return
    for endpoint in config.listen:
        where = parse_endpoint(endpoint)
        if not isinstance(where, str) and not is_near(where[0]):
            yield (
                "listen",
                f"{endpoint} is reached from other machines, and tokens would cross the network in the clear; name "
                "tls_cert and tls_key, or set plain_http = true if that is meant",
            )


def slurm_problems(config: SlurmConfig) -> Iterator[Problem]:
    """What is wrong with the settings of the engine over Slurm taken together."""
    yield from _identity_problems(config)
    if not names_in(config.partitions):
        yield "partitions", "is empty, so that there is nothing to do; name the partitions to schedule, with commas"
    if not config.state_dir.is_absolute():
        yield "state_dir", "is empty; name the folder that what jobs were served is written down in"


def aggregator_problems(config: AggregatorConfig) -> Iterator[Problem]:
    """What is wrong with an Aggregator's settings taken together."""
    if not config.listen:
        yield "listen", "is empty, so that no training job can reach it; name at least one endpoint"
    yield from _identity_problems(config)
    if config.memory_bytes and config.memory_bytes < MIB:
        yield "memory_bytes", f"is {format_bytes(config.memory_bytes)}, less than a model of one tensor needs; raise it"


def _partition_problems(config: ManagerConfig) -> Iterator[Problem]:
    owners = dict.fromkeys(names_in(config.colocation_nodes), "colocation_nodes")
    accounts = [row.name for row in config.account]
    for number, row in enumerate(config.partition, 1):
        where = f"table {number}"
        yield from (("partition", f"{where}: {problem}") for problem in _idle_problems(row))
        if not NODE.fullmatch(row.name):
            yield "partition", f"{where}: '{row.name:.70}' is no name; {NODE_WORDS}"
        elif row.name in [other.name for other in config.partition[: number - 1]]:
            yield "partition", f"{where}: there is another '{row.name}'; give each a name of its own"
        try:
            nodes = expand(row.nodes.replace(" ", ""))
        except ValueError as error:
            yield "partition", f"{where}: {error}; write nodes as n1,gpu[01-16]"
            continue
        if not nodes:
            yield "partition", f"{where}: '{row.name:.70}' has no nodes; name some, or * for those that no other has"
        for node in nodes:
            if node != REST and not NODE.fullmatch(node):
                yield "partition", f"{where}: '{node:.70}' is no node's name; {NODE_WORDS}"
            elif node == REST and node in owners:
                yield "partition", f"{where}: {owners[node]} has the rest already; * stands once"
            elif node in owners:
                yield "partition", f"{where}: {node} is in {owners[node]} as well; a node is in one place only"
            else:
                owners[node] = f"partition {row.name}"
        if REST in nodes and len(nodes) > 1:
            yield "partition", f"{where}: nodes: {REST} stands alone; leave the other names out"
        for name in names_in(row.accounts):
            if name not in accounts:
                yield "partition", f"{where}: there is no [[account]] '{name:.70}'"


def _idle_problems(row: PartitionRow | QosRow) -> Iterator[str]:
    """Settings about idle GPUs that would do nothing."""
    unset = type(row)(name=row.name)
    unused = {
        "idle_gpus_below_pct": ("off", AS_PARTITION), "idle_gpus_after_s": ("off", AS_PARTITION),
        "idle_gpus_grace_s": ("off", AS_PARTITION, "warn"),
    }  # fmt: skip
    for name, words in unused.items():
        if row.idle_gpus in words and getattr(row, name) != getattr(unset, name):
            yield f"{name} does nothing with idle_gpus = '{row.idle_gpus}'; set that to 'end', or leave this out"


def _tenancy_problems(config: ManagerConfig) -> Iterator[Problem]:
    accounts, qualities = [row.name for row in config.account], [row.name for row in config.qos]
    for key, names in (("account", accounts), ("qos", qualities)):
        for number, name in enumerate(names, 1):
            if not NODE.fullmatch(name):
                yield key, f"table {number}: '{name:.70}' is no name; {NODE_WORDS}"
            elif name in names[: number - 1]:
                yield key, f"table {number}: there is another '{name}'; give each a name of its own"
    if config.default_account and config.default_account not in accounts:
        yield "default_account", f"there is no [[account]] '{config.default_account:.70}'"
    if config.default_qos and config.default_qos not in qualities:
        yield "default_qos", f"there is no [[qos]] '{config.default_qos:.70}'"
    for number, row in enumerate(config.account, 1):
        for user in names_in(row.users):
            if not USER.fullmatch(user):
                yield "account", f"table {number}: '{user:.70}' is no user's name; write them with commas between"
    for number, quality in enumerate(config.qos, 1):
        yield from (("qos", f"table {number}: {problem}") for problem in _idle_problems(quality))
        for name in names_in(quality.accounts):
            if name not in accounts:
                yield "qos", f"table {number}: there is no [[account]] '{name:.70}'"


def names_in(text: str) -> list[str]:
    """Names with commas between."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _identity_problems(
    config: DaemonConfig | BlockdevConfig | AgentConfig | SlurmConfig | AggregatorConfig,
) -> Iterator[Problem]:
    if not NODE.fullmatch(config.node):
        yield "node", f"'{config.node:.70}' is no name of a node; {NODE_WORDS}"
    yield from _socket_problems("admin_socket", str(config.admin_socket))


def _socket_problems(setting: str, socket: str) -> Iterator[Problem]:
    try:
        socket_path(socket)
    except ValueError as error:
        yield setting, str(error)


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _slab_number_problems(config: BlockdevConfig) -> Iterator[Problem]:
    copies, slabs = config.copies, SLABS_MAX - SLABS_SPARE
    most_bytes = slabs * config.slab_bytes // copies
    if config.size_bytes <= most_bytes:
        return
    enough = config.slab_bytes
    while config.size_bytes * copies > slabs * enough:
        enough *= 2
    most = format_bytes(most_bytes) + (", two copies of each page," if copies == 2 else "")
    held = f"{most} is all that {slabs} slabs of {format_bytes(config.slab_bytes)} hold"
    yield "slab_bytes", f"is too small for size_bytes: {held}; make slabs {format_bytes(enough)}, at every donor"


def _protection_problems(config: BlockdevConfig) -> Iterator[Problem]:
    has_disk = config.disk_path.is_absolute()
    if config.protection == "disk" and not has_disk:
        todo = "name a file or partition of size_bytes, or set protection to 'replica'"
        yield "disk_path", f"is empty but protection is 'disk'; {todo}"
    if config.protection != "disk" and has_disk:
        yield "disk_path", f"is set but protection is '{config.protection}'; set protection to 'disk', or remove it"
    if config.protection == "none" and not config.i_accept_data_loss:
        loss = "when a donor goes, its pages are lost and their readers are killed"
        yield "i_accept_data_loss", f"must be true with protection = 'none': {loss}; set it to true if that is meant"
    if config.donors_hold != "hot" and config.protection != "disk":
        yield "donors_hold", f"is set but protection is '{config.protection}', where donors hold all; remove it"
    cold, hot = config.cold_slab_pages_per_s_per_gib, config.hot_slab_pages_per_s_per_gib
    if cold and config.donors_hold != "hot":
        problem = f"is set but donors_hold is '{config.donors_hold}', where none is given back; remove one"
        yield "cold_slab_pages_per_s_per_gib", problem
    elif cold and cold >= hot:
        yield "cold_slab_pages_per_s_per_gib", "is not below hot_slab_pages_per_s_per_gib; slabs would come and go"


def _power_of_two(name: str, value: int) -> Iterator[Problem]:
    if value & (value - 1):
        below = 1 << (value.bit_length() - 1)
        yield name, f"is not a power of two; the nearest are {format_bytes(below)} and {format_bytes(2 * below)}"
