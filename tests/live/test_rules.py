"""What a manager's config says of scheduling is refused where it can't be meant."""

import pytest

from farside.config import ManagerConfig
from farside.errors import ConfigError
from farside.scheduler.live.manager import rules_of


def test_a_reservation_that_would_begin_at_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="reserve_after_s: must be at least 1 s, or 0 for never"):
        rules_of(ManagerConfig(reserve_after_s=1e-9))


def test_no_reservation_is_never() -> None:
    assert rules_of(ManagerConfig(reserve_after_s=0.0)).reserve_after_s == float("inf")


def test_a_placement_that_counts_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not say on which nodes"):
        rules_of(ManagerConfig(placement="count"))
