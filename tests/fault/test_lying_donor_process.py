"""Root of a donor reads and rewrites the memory that it lends, under a client that checks every byte [H1]."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from farside.errors import FarsideError
from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from tests.support.fio_load import verifying_fio
from tests.support.liar import Liar
from tests.support.waiting import until

SIZES = ("--donors", "2", "--donor-memory", "256MiB", "--size", "192MiB", "--slab", "8MiB")
LIMIT_S = 1_500.0
"""On a machine that other work keeps busy, ten million pages took more than 540 s."""


def pages_in(session: Session) -> int:
    """Pages read from donors so far; a donor that was left out is trusted again, and may go on lying."""
    status = control.blockdev_status(session.state)
    with suppress(FarsideError):  # it has just been trusted
        for name in status["donors_left_out"]:
            control.ask(Path(control.record(session.state).blockdev.admin_socket), "trust", donor=name)
    return int(status["pages_in"]["remote"])


@pytest.mark.long
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(100_000, id="some pages"),
        pytest.param(10_000_000, id="ten million pages", marks=pytest.mark.timeout(1_600)),
    ],
)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_donor_that_lies_in_every_way_under_load_costs_no_byte(
    transport: str, pages: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with open_sandbox((*SIZES, "--transport", transport), state=tmp_path / "state") as session:
        liar = Liar(lambda: control.record(session.state).donor("d1").pid, seed=7)
        with verifying_fio(session.uri, tmp_path) as fio:
            liar.begin()

            def is_enough() -> bool:
                assert fio.poll() is None, "fio found a wrong byte"
                return pages_in(session) >= pages

            until(is_enough, what=f"{pages} pages read", deadline_s=LIMIT_S, every_s=0.05)
            liar.end()
        status = control.blockdev_status(session.state)
        told = {
            "pages read from donors": status["pages_in"]["remote"], "pages spoilt": liar.spoilt,
            "copies found damaged": status["engine"]["checksum_errors"],
            "lost": status["errors"]["pages_lost"], "failed requests": status["errors"]["requests"],
        }  # fmt: skip
    record_property("told", told)
    assert liar.spoilt > 0
    assert told["copies found damaged"] > 0
    assert (told["lost"], told["failed requests"]) == (0, 0)
