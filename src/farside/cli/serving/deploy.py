"""The commands `farside serve run` and `farside serve status`."""

import os
import time
from pathlib import Path

import msgspec
from rich.table import Table

from farside import admin
from farside.cli.figure_table import figure_table, print_plain
from farside.cli.terminal import standard_output
from farside.errors import ConfigError
from farside.serve.status import ServeStatus
from farside.units import format_seconds

_CHANGES_SHOWN = 10
_LAG_MS_TOLD = 5.0


def run(
    place: Path, plan_file: Path | None, manager: str | None, state: Path | None, log_level: str, *, is_check: bool
) -> int:
    """Serves until SIGTERM; the exit code. ``manager``, ``state``: whose nodes have the devices; None: this machine.

    With ``is_check`` it looks whether the deployment would start, and serves nothing.

    Raises:
        FarsideError: The deployment is wrong, or could not be started.
    """
    from farside.serve.deployment import read_deployment
    from farside.serve.packages import check_packages, packages_of

    deployment = read_deployment(place, socket_folder())
    check_packages(packages_of(deployment, on_this_machine=not manager and state is None))
    from farside.serve.main import run as run_deployment

    address = None
    if manager or state is not None:
        from farside.client.manager_client import find_manager

        address = find_manager(manager, state)
    return run_deployment(deployment, plan_file, address, log_level=log_level, is_check=is_check)


def run_worker(key_file: Path, listen: str | None, capacity_pct: int, log_level: str) -> int:
    """Serves a front as the task of a lease; the exit code.

    Raises:
        FarsideError: There is no key, or nothing to listen at.
    """
    import asyncio

    from farside.agent.serving.lease_task import run_lease
    from farside.agent.serving.partition.cpu import CpuDriver
    from farside.agent.serving.partition.gpu import GpuDriver
    from farside.agent.serving.partition.green import GreenDriver
    from farside.agent.serving.partition.mps import MpsDriver
    from farside.agent.serving.partition.policy import Driver
    from farside.agent.serving.partition.whole import WholeDriver
    from farside.daemon.control.keys import KeyRing
    from farside.listen import allow_many_connections, open_listener
    from farside.log import start_logging

    start_logging(log_level)
    allow_many_connections()
    keys = KeyRing(key_file)
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if listen is None and not (host and port):
        raise ConfigError("this process is no task of a job, so nothing says where it listens", hint="give --listen")
    listener = open_listener(listen or f"tcp:{host}:{port}", setting="--listen" if listen else "MASTER_ADDR")
    drivers: dict[str, Driver] = {
        "cpu": CpuDriver(capacity_pct),
        "whole": WholeDriver(),
        "mps": MpsDriver(),
        "green": GreenDriver(),
        "gpu": GpuDriver(),
    }
    asyncio.run(run_lease(listener, keys.current, drivers))
    return 0


def show_status(place: Path, *, as_json: bool) -> int:
    """Asks a running deployment and prints what it says; 1 if it is not ready.

    Raises:
        FarsideError: The deployment's file is wrong, or nobody answers.
    """
    from farside.serve.deployment import read_deployment

    told = admin.call(
        read_deployment(place, socket_folder()).admin_socket,
        "status",
        absent_hint="is the deployment running? of one that another user has started name the admin_socket in its file",
    )
    status = msgspec.convert(told, ServeStatus)
    with standard_output():
        if as_json:
            print(msgspec.json.encode(told).decode())
        else:
            _print(status)
    return 0 if status.ready else 1


def socket_folder() -> Path | None:
    """Where deployments of this user have their admin sockets; None: no folder is theirs alone."""
    service = os.environ.get("RUNTIME_DIRECTORY")  # systemd's RuntimeDirectory=
    if os.geteuid() == 0 or service:
        return Path(service or "/run/farside/serve")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "farside-serve" if runtime else None


def _print(status: ServeStatus) -> None:
    models = figure_table("model", "SLO ms", "rate/s", "plan/s", "p50", "p99", "met", "late", "dropped", "failed")
    for model in status.models:
        models.add_row(
            model.name, f"{model.slo_ms:g}", f"{model.rate:.0f}", f"{model.planned_rate:.0f}", f"{model.p50_ms:.1f}",
            f"{model.p99_ms:.1f}", f"{model.met}", f"{model.late}", f"{model.dropped + model.rejected}",
            f"{model.failed}",
        )  # fmt: skip
    glets = figure_table("device", "part", "models", "cycle", "occupied", "process", "real/planned", "late", texts=3)
    for part in status.glets:
        loads = ", ".join(f"{portion.model} x{portion.batch}" for portion in part.glet.models)
        glets.add_row(
            f"{part.glet.gpu}", f"{part.glet.part_pct} %", loads, f"{part.glet.cycle_ms:.1f} ms",
            f"{part.busy_pct:.0f} %", f"{part.pid}" if part.pid else "starts again",
            f"{part.ratio:.2f}" if part.ratio else "-", f"{part.late_ms:.1f} ms",
        )  # fmt: skip
    changes = figure_table("at", "cause", "devices", "parts", "new", "resized", "closed", "took", texts=2)
    for change in status.changes[-_CHANGES_SHOWN:]:
        changes.add_row(
            time.strftime("%H:%M:%S", time.localtime(change.at_s)), change.cause, f"{change.gpus}",
            f"{change.part_pct} %", f"{change.prepared}", f"{change.resized}", change.closed_words,
            change.problem or f"{change.plan_s + change.prepare_s + change.drain_s:.1f} s",
        )  # fmt: skip
    doors = ", ".join(
        f"{name} {address}" for name, address in (("HTTP", status.http), ("gRPC", status.grpc)) if address
    )
    print_plain(models, glets, *([_lease_table(status)] if status.manager else []), changes)
    print_plain(f"{status.name}: {'ready' if status.ready else 'not ready'} on {doors}; driver {status.driver}.")
    if status.plan_problem:
        print_plain(f"Not all rates are served: {status.plan_problem}.")
    if status.lease_problem:
        print_plain(f"A lease is lacking: {status.lease_problem}.")
    if status.manager:
        away = f"; it is away, and leases stay as they are: {status.manager_away}" if status.manager_away else ""
        print_plain(f"On nodes of the manager {status.manager}{away}.")
    if status.lag_ms >= _LAG_MS_TOLD:
        print_plain(f"The front has too little processor time: it reads requests up to {status.lag_ms:.0f} ms late.")
    if status.deaths:
        print_plain(f"{status.deaths} executors have died.")


def _lease_table(status: ServeStatus) -> Table:
    leases = figure_table("lease", "job", "node", "state", "left", texts=4)
    for one in status.leases:
        state = f"leaving: {one.leaving}" if one.leaving else one.state
        leases.add_row(f"{one.gpu}", one.job, one.node or "-", state, format_seconds(one.left_s) if one.left_s else "-")
    return leases
