"""The command `farside doctor`: checks whether this machine can run Farside with its settings."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from farside.blockdev.peers_file import read_peers
from farside.cli.config import Program, effective, groups
from farside.cli.doctor.attempt import checked
from farside.cli.doctor.donors import donor_checks, transport_check
from farside.cli.doctor.key import key_checks
from farside.config import AgentConfig, BlockdevConfig, DaemonConfig, ManagerConfig, SlurmConfig
from farside.config.load import ConfigProblems, standard_files
from farside.errors import ConfigError, FarsideError
from farside.kmod_shim.preflight import Check, Disk, Outcome, preflight, problems
from farside.kmod_shim.rdma.capabilities import device_checks
from farside.kmod_shim.rdma.devices import devices
from farside.kmod_shim.swap.hibernation import hibernation_check
from farside.units import format_count

Planes = DaemonConfig | BlockdevConfig  # of memory: they have a key and slabs
AnyConfig = Planes | AgentConfig | ManagerConfig | SlurmConfig

ROOT = Path("/")
_MARK = {Outcome.OK: "ok  ", Outcome.WARNING: "note", Outcome.FAILED: "FAIL"}


def run(files: Sequence[Path], program: Program | None = None, *, as_json: bool) -> int:
    """Prints every check and returns the exit code: 1 if a required one failed, otherwise 0.

    ``files``: settings instead of /etc/farside. ``program``: whose settings, where file names do not say.
    """
    configs, wrong = _settings(files, program)
    borrowers = [config for config in configs if isinstance(config, BlockdevConfig)]
    # What needs settings is checked only for programs that have some; what concerns the machine always is.
    machine = preflight(ROOT, keys=_keys(configs), disk=_disk(borrowers))
    checks = (
        *wrong,
        *machine,
        *device_checks(devices(ROOT), _slab_bytes(configs)),
        *map(_peers, borrowers),
        *(check for config in borrowers for check in (*transport_check(config), *donor_checks(config))),
        *(check for config in borrowers for check in _tls(config)),
        *(check for config in borrowers for check in _guards(config)),
        *(check for config in configs for check in _cluster(config)),
        hibernation_check(ROOT),
    )
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(checks), indent=2).decode())
    else:
        _print(checks)
    return 1 if any(problems(checks)) else 0


def _print(checks: Sequence[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{_MARK[check.outcome]}  {check.name:<{width}}  {check.found}")
        if check.advice:
            print(f"      {'':{width}}  -> {check.advice}")


def _settings(files: Sequence[Path], whose: Program | None) -> tuple[list[AnyConfig], list[Check]]:
    configs: list[AnyConfig] = []
    wrong: list[Check] = []
    # A machine that only borrows has no daemon.toml: what nobody configured is not checked.
    standard: list[tuple[Program, list[Path]]] = [(program, []) for program in Program if standard_files(program)]
    for program, paths in groups(files, whose) if files or whose else standard:
        try:
            config = effective(program, paths).config
            configs += [config] if isinstance(config, AnyConfig) else []
        # A broken file is a failed check, so that the other checks are still made.
        except ConfigProblems as error:
            wrong += [_wrong(problem) for problem in error.problems]
    return configs, wrong


def _wrong(problem: str, *, name: str = "settings") -> Check:
    found, _, advice = problem.partition("; ")
    return Check(name=name, outcome=Outcome.FAILED, found=found, advice=advice)


def _cluster(config: AnyConfig) -> Iterator[Check]:
    """What the agent, the manager or the engine over Slurm would refuse to start over."""
    match config:
        case AgentConfig():
            from farside.cli.doctor.agent import agent_checks

            yield from agent_checks(config)
        case ManagerConfig():
            from farside.cli.doctor.manager import manager_checks

            yield from manager_checks(config)
        case SlurmConfig():
            from farside.cli.doctor.slurm import slurm_checks

            yield from slurm_checks(config)


def _peers(config: BlockdevConfig) -> Check:
    try:
        count = len(read_peers(config.peers_file))
    except ConfigError as error:
        return _wrong(str(error), name="peers")
    few = "name a donor there; until then every page goes to the disk" if not count else ""
    found = f"{config.peers_file}: {format_count(count, 'donor')}"
    return Check(name="peers", outcome=Outcome.WARNING if few else Outcome.OK, found=found, advice=few)


def _tls(config: BlockdevConfig) -> Iterator[Check]:
    """Whether the files of TLS are usable, and this engine has TLS; nothing where no setting asks for it."""
    from farside.blockdev.client.tls_keys import read_tls

    if config.has_tls:
        files = [str(path) for path in (config.tls_psk_file, config.tls_cert) if path.is_absolute()]
        yield checked("nbd tls", lambda: read_tls(config).destroy(), ", ".join(files))


def _keys(configs: Sequence[AnyConfig]) -> tuple[Check, ...]:
    # The cluster's programs have none, so that nothing is missing where nothing else is set up.
    files = _key_files(configs)
    return () if configs and not files else key_checks(files)


def _slab_bytes(configs: Sequence[AnyConfig]) -> int:
    sizes = (config.slab_bytes for config in configs if isinstance(config, Planes))
    return next(sizes, DaemonConfig().slab_bytes)


def _guards(config: BlockdevConfig) -> Iterator[Check]:
    """Whether a running borrower may be swapped to; a fault only where somebody does."""
    from farside.kmod_shim.swap.facts import ask_served, guard_of
    from farside.kmod_shim.swap.record import read_records

    try:
        checks = guard_of(ROOT, ask_served(config.admin_socket))[:-1]  # min_free_kbytes was looked at already
    except FarsideError:
        yield Check(name="guard", outcome=Outcome.OK, found=f"no blockdev runs at {config.admin_socket}")
        return
    records = read_records(ROOT)
    is_swap = any(one.is_swap and one.admin_socket == str(config.admin_socket) for one in records)
    for check in checks:
        minor = check.outcome is Outcome.FAILED and not is_swap
        yield replace(check, outcome=Outcome.WARNING) if minor else check


def _key_files(configs: Sequence[AnyConfig]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(config.key_file for config in configs if isinstance(config, Planes)))


def _disk(borrowers: Iterable[BlockdevConfig]) -> Disk | None:
    disks = (Disk(path=one.disk_path, size_bytes=one.size_bytes) for one in borrowers if one.protection == "disk")
    return next(disks, None)
