"""Waiting without an event loop: it looks at least once, and says what it waited for in vain."""

import pytest

from farside.errors import PeerError
from farside.sandbox.waiting import wait_until


def test_it_returns_at_the_first_yes() -> None:
    answers = iter((False, False, True))

    wait_until(lambda: next(answers), "three looks", limit_s=60.0, every_s=0.0)

    assert list(answers) == []


def test_what_is_so_already_is_seen_even_without_any_time() -> None:
    wait_until(lambda: True, "nothing", limit_s=0.0)


def test_what_never_comes_is_named_in_one_line() -> None:
    with pytest.raises(PeerError, match=r"^waited 0 s in vain for the end of donor d1$"):
        wait_until(lambda: False, "the end of donor d1", limit_s=0.0, every_s=0.0)
