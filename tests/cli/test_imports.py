"""Imports at a program's start: Python does not look for garbage meanwhile, and does afterwards."""

import gc
from collections.abc import Iterator

import pytest

from farside.cli.imports import without_garbage_collection


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_no_garbage_is_looked_for_within_and_it_is_again_afterwards() -> None:
    gc.enable()

    with without_garbage_collection():
        within = gc.isenabled()

    assert (within, gc.isenabled()) == (False, True)


def test_a_failed_import_leaves_the_collector_on() -> None:
    gc.enable()

    with pytest.raises(ModuleNotFoundError), without_garbage_collection():
        raise ModuleNotFoundError

    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()

    with without_garbage_collection():
        pass

    assert not gc.isenabled()


def test_what_was_imported_is_left_out_of_later_looks() -> None:
    before = gc.get_freeze_count()

    with without_garbage_collection():
        kept: list[list[int]] = [[] for _ in range(1000)]

    assert gc.get_freeze_count() - before >= len(kept)
