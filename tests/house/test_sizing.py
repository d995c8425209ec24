"""What to lend and to borrow, and the paper's cost model."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from farside.cli.app import app
from farside.cli.sizing_model import BorrowerSize, CostModel, DonorSize, benefit, borrower_size, donor_size
from farside.errors import ConfigError
from farside.units import GIB, MIB
from tests.support.programs import outcome
from tests.support.sandbox import farside


def test_a_machines_network_costs_what_the_paper_says() -> None:
    # §2.7.6: "around $1.45 per month", of Table 2.2
    assert round(CostModel().cost_per_month, 2) == 1.45


def test_a_fifth_of_memory_earns_what_the_paper_says() -> None:
    # Figure 2.20: "up to 24.7 %" where nobody notices; a fifth lent beside four fifths let is 25 % before the cost.
    worth = benefit(CostModel(), memory_bytes=128 * GIB, lent_share=0.2, price_per_gib_month=5.0)

    assert 0.245 < worth.growth < 0.25


def test_discounted_memory_may_earn_less_than_it_costs() -> None:
    worth = benefit(CostModel(), memory_bytes=4 * GIB, lent_share=0.2, price_per_gib_month=1.0, discount=0.8)

    assert worth.growth < 0


def test_a_machine_that_lends_all_of_its_memory_has_nothing_to_grow_on() -> None:
    assert benefit(CostModel(), memory_bytes=GIB, lent_share=1.0, price_per_gib_month=1.0).growth == 0.0


def donor(memory_bytes: int = 64 * GIB, used_bytes: int = 20 * GIB) -> DonorSize:
    return donor_size(memory_bytes=memory_bytes, used_bytes=used_bytes, slab_bytes=64 * MIB)


def device(
    replicas: int = 1, size_bytes: int = 64 * GIB, lender: DonorSize | None = None, has_disk: bool | None = None
) -> BorrowerSize:
    return borrower_size(
        size_bytes=size_bytes,
        replicas=replicas,
        has_disk=replicas == 1 if has_disk is None else has_disk,
        pages_out_per_s=1000,
        donor=lender or donor(),
        workers=2,
        pending_bytes=16 * MIB,
    )


@given(
    memory=st.integers(min_value=1, max_value=1 << 44),
    used=st.floats(min_value=0, max_value=1.2),
    slab=st.sampled_from((2 * MIB, 64 * MIB, GIB)),
)
def test_headroom_is_never_lent(memory: int, used: float, slab: int) -> None:
    size = donor_size(memory_bytes=memory, used_bytes=int(memory * used), slab_bytes=slab)

    assert size.slabs >= 0
    assert not size.slabs or size.used_bytes + size.headroom_bytes + size.lent_bytes <= memory


def test_two_donors_and_the_disk_take_twice_the_memory_and_the_disk() -> None:
    size = device(2, has_disk=True)

    assert (size.remote_bytes, size.disk_bytes) == (2 * size.size_bytes, size.size_bytes)
    assert size.disk_write_bytes_per_s == device().disk_write_bytes_per_s


def test_one_donor_may_die_and_the_rest_holds_everything() -> None:
    for replicas in (1, 2):
        size = device(replicas)

        assert (size.donors - 1) * donor().lent_bytes >= size.remote_bytes
        assert (size.donors - 2) * donor().lent_bytes < size.remote_bytes


def test_a_replica_needs_a_third_donor_to_be_made_again() -> None:
    assert device(2, size_bytes=GIB).donors == 3


def test_the_disk_is_as_large_as_the_device_and_bears_every_page_out() -> None:
    assert (device().disk_bytes, device().disk_write_bytes_per_s) == (64 * GIB, 4096000.0)
    assert (device(2).disk_bytes, device(2).disk_write_bytes_per_s) == (0, 0.0)


def test_a_small_server_takes_what_was_measured_and_the_manual_says() -> None:
    assert device(size_bytes=4 * GIB).locked_bytes // MIB == 138 + 4 * 4


def test_donors_that_lend_nothing_are_not_counted() -> None:
    assert device(lender=donor(used_bytes=64 * GIB)).donors == 0


def test_the_command_says_it_in_lines_and_as_json() -> None:
    words = ("sizing", "--memory", "64GiB", "--used", "20GiB", "--size", "64GiB", "--price", "5")

    printed = outcome(farside(*words))
    told = json.loads(outcome(farside(*words, "--json")).stdout)

    assert printed.status == 0, printed.stderr
    assert "lends 575 slabs, 35.9 GiB (56%)" in printed.stdout
    assert "16.31 W of network: $1.45" in printed.stdout
    assert "lent memory earns $179.69" in printed.stdout
    assert told["donor"]["slabs"] == 575
    assert told["borrower"]["donors"] == 3


def test_the_command_takes_this_machine_where_nothing_is_named() -> None:
    assert outcome(farside("sizing")).status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slab", "0"), "--slab: must be 2 MiB to 1 GiB"),
        (("--slab", "3MiB"), "--slab: is not a power of two"),
        (("--size", "0"), "--size: must be 2 MiB to 16 TiB"),
        (("--size", "16TiB", "--slab", "2MiB"), "--slab: is too small for size_bytes"),
        (("--memory", "1e30", "--used", "1"), "--memory: must be"),
        *((("--page-outs", odd), "--page-outs") for odd in ("nan", "inf", "1e308", "-1", "x")),
        *(((option, odd), option) for option in ("--price", "--discount", "--opex", "--pue") for odd in ("nan", "inf")),
    ],
)
def test_what_nothing_can_be_reckoned_with_is_refused(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["sizing", *words])

    told = str(done.exception) if isinstance(done.exception, ConfigError) else done.output
    assert isinstance(done.exception, ConfigError | SystemExit)
    assert said in told


def test_more_use_than_memory_is_refused() -> None:
    done = outcome(farside("sizing", "--memory", "1GiB", "--used", "2GiB"))

    assert done.status == 2
    assert "is more than --memory" in done.stderr
