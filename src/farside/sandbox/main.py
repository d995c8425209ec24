"""The command `farside sandbox`: starts a sandbox from options, and ends it."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from farside import admin
from farside.endpoint import parse_endpoint
from farside.errors import ConfigError, FarsideError, PeerError, first_of
from farside.geometry import GRANULE_BYTES
from farside.listen import clear_stale, open_listener
from farside.sandbox.cluster import parse_shape
from farside.sandbox.files import backup_disk, uri
from farside.sandbox.folder import check_length, claimed
from farside.sandbox.layout import SLAB_BYTES_DEFAULT, WORKERS_DEFAULT, Plan, Shape
from farside.sandbox.plane import Plane
from farside.sandbox.program_settings import parse_settings
from farside.units import MIB, format_bytes

DONORS_MAX = 64
LISTEN_DEFAULT_NAME = "nbd.sock"


def run(
    *,
    donors: int = 3,
    donor_memory_bytes: int = 512 * MIB,
    transport: str = "tcp",
    size_bytes: int = 1024 * MIB,
    listen: tuple[str, ...] = (),
    disk: Path | None = None,
    replicas: int = 1,
    no_protection: bool = False,
    clear_pages: bool = False,
    state: Path | None = None,
    slab_bytes: int | None = None,
    workers: int = WORKERS_DEFAULT,
    restart_donors: bool = False,
    cluster: str | None = None,
    aggregators: int = 0,
    executors: int = 0,
    later: int = 0,
    program_settings: Sequence[str] = (),
) -> int:
    """Runs a sandbox until SIGTERM, SIGHUP or Ctrl-C, and returns the exit code.

    Prints ``ready URI`` for each listener on standard output when clients may connect, and with `cluster` (NODESxGPUS)
    ``ready unix:PATH`` of the manager after them; so many of its nodes as `aggregators` says have one, the last
    `executors` are set aside for co-located jobs, and the agents of the last `later` wait for `start_agent`.
    `program_settings` are PROGRAM.NAME=VALUE. `slab_bytes` is 16 MiB when not given. Without `disk`, `replicas` or
    `no_protection` the backup disk is a file in the state folder. Without `state` the folder is a temporary one. What
    the sandbox made is gone when this returns; it takes no folder, listener or file that another made, but for a `disk`
    that is named.

    Raises:
        FarsideError: an option is wrong, or a process did not start.
    """
    with ExitStack() as stack:
        if state is None:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farside-sandbox-")))
        folder = state.absolute()
        check_length(folder, has_cluster=cluster is not None)
        plan = checked(
            Plan(
                donors=donors,
                donor_memory_bytes=donor_memory_bytes,
                transport=transport,
                size_bytes=size_bytes,
                listen=listen or (f"unix:{folder / LISTEN_DEFAULT_NAME}",),
                protection=_protection(disk=disk, replicas=replicas, no_protection=no_protection),
                disk=disk.absolute() if disk is not None else folder / "disk",
                encrypt_remote=not clear_pages,
                slab_bytes=slab_bytes or SLAB_BYTES_DEFAULT,
                workers=workers,
                restart_donors=restart_donors,
                cluster=_shape(cluster, aggregators=aggregators, executors=executors, later=later),
                program_settings=parse_settings(program_settings, _programs(cluster, aggregators)),
            )
        )
        _take(plan, folder, stack)
        return _run_to_the_end(Plane(plan, folder))


def _take(plan: Plan, folder: Path, stack: ExitStack) -> None:
    """Takes what the sandbox needs for itself, until the stack is closed: the folder, its listeners, the disk."""
    stack.enter_context(claimed(folder))
    for listener in plan.listen:
        _refuse_a_taken(listener)
    if plan.disk is not None:
        stack.enter_context(backup_disk(plan.disk, plan.size_bytes))


def _programs(cluster: str | None, aggregators: int) -> tuple[str, ...]:
    """The programs of a sandbox that have settings."""
    of_cluster = ("manager", "agent", *(("aggregator",) if aggregators else ())) if cluster is not None else ()
    return ("daemon", "blockdev", *of_cluster)


def _shape(cluster: str | None, **counts: int) -> Shape | None:
    if cluster is None:
        if asked := [option for option, count in counts.items() if count]:
            raise ConfigError(f"--{asked[0]}: there are no nodes for them", hint="add --cluster, such as 3x2")
        return None
    shape = replace(parse_shape(cluster), **counts)
    there_are = "there is only 1 node" if shape.nodes == 1 else f"there are only {shape.nodes} nodes"
    for option, count in counts.items():
        if count > shape.nodes:
            raise ConfigError(f"--{option} {count}: {there_are}")
    if shape.later == shape.nodes:
        raise ConfigError(f"--later {shape.later}: {there_are}, and one at least must start with the sandbox")
    return shape


def checked(plan: Plan) -> Plan:
    """The plan with listeners that do not depend on the working folder, and a disk only where pages go to one.

    Raises:
        ConfigError: an option cannot work, with the reason.
    """
    disk = plan.disk if plan.protection == "disk" else None
    plan = replace(plan, listen=tuple(_absolute(listener) for listener in plan.listen), disk=disk)
    for is_wrong, why in _objections(plan):
        if is_wrong:
            raise ConfigError(why)
    return plan


def _objections(plan: Plan) -> tuple[tuple[bool, str], ...]:
    slab, memory = format_bytes(plan.slab_bytes), format_bytes(plan.donor_memory_bytes)
    return (
        (not 1 <= plan.donors <= DONORS_MAX, f"--donors {plan.donors}: from 1 to {DONORS_MAX}"),
        (plan.transport not in ("tcp", "shm", "rdma"), f"--transport {plan.transport}: tcp, shm or rdma"),
        (plan.size_bytes <= 0 or plan.size_bytes % GRANULE_BYTES != 0, "--size: must be a multiple of 2MiB, and not 0"),
        (plan.slab_bytes < GRANULE_BYTES or plan.slab_bytes.bit_count() != 1, "--slab: a power of two from 2MiB"),
        (
            plan.donor_memory_bytes < plan.headroom_bytes + plan.slab_bytes,
            f"--donor-memory {memory} leaves no room for a slab of {slab} beside the headroom",
        ),
        (plan.protection == "replica" and plan.donors < 2, "--replicas 2 needs at least two donors"),
        (
            plan.protection != "disk" and plan.size_bytes * plan.copies > plan.lendable_bytes,
            f"--size {format_bytes(plan.size_bytes)}, {plan.copies} times, is more than the donors can lend without a "
            f"disk: {format_bytes(plan.lendable_bytes)}",
        ),
    )


def _protection(*, disk: Path | None, replicas: int, no_protection: bool) -> str:
    named = [name for name, given in (("--disk", disk is not None), ("--no-protection", no_protection)) if given]
    if replicas not in (1, 2):
        raise ConfigError(f"--replicas {replicas}: 1 or 2")
    if replicas == 2:
        named.append("--replicas 2")
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} exclude each other")
    return "none" if no_protection else "replica" if replicas == 2 else "disk"


def _absolute(listener: str) -> str:
    # A child's working folder is ours too, but a record that names relative paths is of no use to others.
    try:
        where = parse_endpoint(listener)
        found = f"unix:{Path(where).absolute()}" if isinstance(where, str) else listener
        parse_endpoint(found)
    except ValueError as error:
        raise ConfigError(f"--listen {listener}: {error}") from None
    return found


def _refuse_a_taken(listener: str) -> None:
    # The borrower would refuse it too, but only when everything else runs.
    where = parse_endpoint(listener)
    if isinstance(where, str):
        if not Path(where).parent.is_dir():
            raise ConfigError(f"--listen {where}: there is no folder {Path(where).parent}", hint="make it first")
        try:
            clear_stale(where)
        except OSError as error:
            raise ConfigError(f"--listen {where}: {error.strerror}") from None
    else:
        open_listener(listener, setting="--listen").close()


def _run_to_the_end(plane: Plane) -> int:
    try:
        asyncio.run(_serve(plane))
    except* FarsideError as group:
        raise first_of(group) from None
    except* OSError as group:  # no room left, or somebody removed the folder
        error = first_of(group)
        raise PeerError(f"{error.filename or 'sandbox'}: {error.strerror or error}") from error
    return 0


async def _serve(plane: Plane) -> None:
    told_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told_to_end.set)
    try:
        plane.write_files()
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(_start_and_tell(plane, tasks))
            await told_to_end.wait()
            work.cancel()
            await plane.end()
    finally:
        await plane.end()


def _starting(start: Callable[[str], Awaitable[None]]) -> admin.Handler:
    async def handle(request: Mapping[str, object]) -> object:
        await start(str(request.get("name", "")))
        return {}

    return handle


async def _start_and_tell(plane: Plane, tasks: asyncio.TaskGroup) -> None:
    await plane.start(tasks)

    async def status(_: Mapping[str, object]) -> object:
        return plane.record()

    handlers: dict[str, admin.Handler] = {"status": status, "start_donor": _starting(plane.start_donor)}
    cluster = plane.cluster
    if cluster is not None:
        handlers["start_agent"] = _starting(cluster.start_agent)
        handlers["start_aggregator"] = _starting(cluster.start_aggregator)
        handlers["start_executor"] = _starting(cluster.start_executor)
        handlers["start_manager"] = _starting(lambda _: cluster.start_manager())
    async with admin.serve(plane.state / "sandbox.sock", handlers):
        for listener in plane.plan.listen:
            sys.stdout.write(f"ready {uri(listener)}\n")
        if cluster is not None:
            sys.stdout.write(f"ready {cluster.endpoint}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
