"""Checks of `farside doctor` on what a manager would refuse to start over."""

import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from sqlalchemy.engine import make_url

from farside.cli.doctor.attempt import checked, tried
from farside.cli.doctor.places import folder_checks, is_served, listen_checks
from farside.cli.doctor.trees import trees_checks
from farside.config import ManagerConfig
from farside.kmod_shim.preflight import Check, Outcome
from farside.scheduler.manager.auth.token_file import read_tokens
from farside.scheduler.manager.decider.scheduler_process import ASK
from farside.scheduler.manager.named_files import READERS
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.migrate import check_readable
from farside.units import format_count


def manager_checks(config: ManagerConfig) -> Iterator[Check]:
    """One line for each thing that the manager needs, with what it found."""
    has_tls = config.tls_cert.is_absolute()
    shown = {
        "policy": f"{config.policy}, placement {config.placement}",
        "power": f"policy {config.power}",
        "tls": f"certificate {config.tls_cert}" if has_tls else "none; other machines need it, or a token",
    }
    for about, read in READERS.items():
        yield checked(about, partial(read, config), shown[about])
    yield from _tokens(config)
    yield from folder_checks("state_dir", config.state_dir)
    is_running = is_served(config.state_dir / ASK)
    yield from listen_checks("listen", config.listen, is_running=is_running)
    ports = [f"tcp:{config.metrics_listen}"] if config.metrics_listen else []
    yield from listen_checks("metrics_listen", ports, is_running=is_running)
    yield _store(config)
    yield from trees_checks(config)
    yield from _munge(config)


def _munge(config: ManagerConfig) -> Iterator[Check]:
    """The manager starts without munged, and answers those who come by it with 503."""
    if config.auth == "munge" and not is_served(config.munge_socket):
        found = f"munge_socket {config.munge_socket}: no munged listens there, so no user of another machine gets in"
        yield Check(name="munge", outcome=Outcome.WARNING, found=found, advice="systemctl enable --now munge")


def _tokens(config: ManagerConfig) -> Iterator[Check]:
    """The file is read again and again; one that is wrong lets nobody in who has a token."""
    file = config.tokens_file
    if not file.exists():
        advice = f"`farside token NAME --file {file}` makes it; on this machine users need none"
        yield Check(name="tokens", outcome=Outcome.WARNING, found=f"{file}: not there", advice=advice)
        return
    rows, wrong = tried("tokens", lambda: read_tokens(file))
    yield wrong or Check(name="tokens", outcome=Outcome.OK, found=f"{file}: {format_count(len(rows or ()), 'token')}")


def _store(config: ManagerConfig) -> Check:
    url = make_url(config.store_url)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        # Opening it would make a file that the manager's user could not write.
        folder = Path(url.database).parent
        if not folder.is_dir():
            found = f"store_url: {folder}: no such folder"
            return Check(name="store", outcome=Outcome.FAILED, found=found, advice="make it")
        if not os.access(folder, os.W_OK | os.X_OK):
            found = f"store_url: {folder} can't be written by this user"
            advice = "run `farside doctor` as the manager's user; chown it to that user"
            return Check(name="store", outcome=Outcome.FAILED, found=found, advice=advice)
        return Check(name="store", outcome=Outcome.OK, found=f"{url.database}: not there yet; the manager makes it")
    has_tables, wrong = tried("store", partial(_has_tables, config.store_url))
    where = url.render_as_string(hide_password=True)
    if wrong is None and url.get_backend_name() == "sqlite" and not _is_writable(Path(url.database or "")):
        found = f"store_url: {url.database} can't be written by this user, or its folder can't"
        advice = "run `farside doctor` as the manager's user; chown it to that user"
        return Check(name="store", outcome=Outcome.FAILED, found=found, advice=advice)
    return wrong or Check(name="store", outcome=Outcome.OK, found=where if has_tables else f"{where}: empty")


def _is_writable(database: Path) -> bool:
    # SQLite writes its journal beside the file.
    return os.access(database, os.W_OK) and os.access(database.parent, os.W_OK | os.X_OK)


def _has_tables(url: str) -> bool:
    with closing(EventStore(url)) as store:
        return check_readable(store)
