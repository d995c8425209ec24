"""The ledger: rules that a whole donor would take long to show."""

import pytest

from farside.daemon.control.messages import ErrorCode
from farside.daemon.slab.pool import Slab
from farside.daemon.slab.sessions import LEASE_NUMBERS, Ledger, Loan, Refused, Session, Transport


def ledger() -> tuple[Ledger, Session]:
    made = Ledger(lease_expiry_s=30.0)
    return made, made.open(number=7, node="b1", now_s=0.0)


def grant(book: Ledger, session: Session) -> Loan:
    slab = Slab(fd=-1, address=1 << 40, length_bytes=1 << 21, is_huge=False)
    return book.grant(session, slab=slab, device="swap", transport=Transport.NETWORK, token=9, now_s=0.0)


def test_a_lease_number_comes_again_only_after_all_others() -> None:
    book, session = ledger()
    kept = grant(book, session)

    numbers = []
    for _ in range(LEASE_NUMBERS):
        loan = grant(book, session)
        numbers.append(loan.lease)
        book.end(loan)

    assert numbers[:3] == [1, 2, 3]
    assert len(set(numbers[: LEASE_NUMBERS - 1])) == LEASE_NUMBERS - 1
    assert numbers[-1] == 1
    assert kept.lease not in numbers


def test_epochs_of_leases_only_grow() -> None:
    book, session = ledger()

    first = grant(book, session)
    book.end(first)
    second = grant(book, session)

    assert second.epoch > first.epoch


def test_the_first_data_epoch_fences_nothing_and_an_equal_one_joins() -> None:
    book, _ = ledger()

    assert [book.admit_data(number=7, node="b1", epoch=epoch)[1] for epoch in (5, 5, 6, 6)] == [
        False,
        False,
        True,
        False,
    ]
    with pytest.raises(Refused) as caught:
        book.admit_data(number=7, node="b1", epoch=5)
    assert caught.value.code == ErrorCode.SESSION


def test_silence_is_counted_from_the_last_frame() -> None:
    book, session = ledger()
    session.heard_s = 10.0

    assert book.expired_sessions(40.0) == ()
    assert book.expired_sessions(40.1) == (session,)


def test_a_session_is_closed_only_when_it_has_no_loans() -> None:
    book, session = ledger()
    loan = grant(book, session)

    with pytest.raises(AssertionError):
        book.close(session)
    book.end(loan)
    book.close(session)

    assert not book.is_open(session)
    assert not book.is_standing(loan)
