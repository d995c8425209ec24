"""Checks of `farside doctor` on what a manager would refuse to start over."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from sqlalchemy.engine import make_url

from farside.cli.doctor.attempt import checked, tried
from farside.config import ManagerConfig
from farside.kmod_shim.preflight import Check, Outcome
from farside.scheduler.configured_rules import rules_of
from farside.scheduler.manager.auth.tls_reload import tls_of
from farside.scheduler.manager.auth.token_file import read_tokens
from farside.scheduler.manager.learned_before import learned_before
from farside.scheduler.manager.power.check_setup import power_setup
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.migrate import check_readable
from farside.units import format_count


def manager_checks(config: ManagerConfig) -> Iterator[Check]:
    """One line for each thing that the manager needs, with what it found."""
    # With past jobs and model, where the settings name them.
    yield checked("policy", partial(_learned, config), f"{config.policy}, placement {config.placement}")
    yield checked("power", lambda: power_setup(config), f"policy {config.power}")
    tls = (
        f"certificate {config.tls_cert}"
        if config.tls_cert.is_absolute()
        else "none; other machines need it, or a token"
    )
    yield checked("tls", lambda: tls_of(config), tls)
    yield from _tokens(config)
    yield _store(config)


def _learned(config: ManagerConfig) -> object:
    return learned_before(config, rules_of(config))


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
        return Check(name="store", outcome=Outcome.OK, found=f"{url.database}: not there yet; the manager makes it")
    has_tables, wrong = tried("store", partial(_has_tables, config.store_url))
    where = url.render_as_string(hide_password=True)
    return wrong or Check(name="store", outcome=Outcome.OK, found=where if has_tables else f"{where}: empty")


def _has_tables(url: str) -> bool:
    with closing(EventStore(url)) as store:
        return check_readable(store)
