"""Placements, costs and effects by the names that users give them."""

import pytest

from farside.errors import ConfigError
from farside.scheduler.placement.catalog import PLACEMENTS, make_placement
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.skew import Skew
from farside.scheduler.placement.yarn import Yarn
from farside.scheduler.preemption_cost import PREEMPTION_COSTS, ModelCost, make_preemption_cost
from farside.scheduler.slowdown import SLOWDOWNS, SpreadSlowdown, make_slowdown


def test_each_knows_itself_by_the_name_that_users_give_it() -> None:
    assert [make_placement(name, {}).name for name in PLACEMENTS] == list(PLACEMENTS)
    assert [make_preemption_cost(name, {}).name for name in PREEMPTION_COSTS] == list(PREEMPTION_COSTS)
    assert [make_slowdown(name, {}).name for name in SLOWDOWNS] == list(SLOWDOWNS)


def test_settings_are_set_by_name() -> None:
    assert make_placement("consolidate", {"remainder_on_fullest": "yes"}) == Consolidate(remainder_on_fullest=True)
    assert make_placement("skew", {"packlimit": "20%", "unmeasured": "relax"}) == Skew(
        packlimit=0.2, unmeasured="relax"
    )
    assert make_placement("yarn", {"server_cpus": "0"}) == Yarn(server_cpus=0)
    assert make_preemption_cost("model", {"storage_bytes_per_s": "10GB/s", "fixed_s": "1min"}) == ModelCost(
        storage_bytes_per_s=1e10, fixed_s=60
    )
    assert make_slowdown("spread", {"largest_slowdown": "2"}) == SpreadSlowdown(largest_slowdown=2)


def test_a_wrong_name_is_told_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'consolidate'"):
        make_placement("consolidated", {})
    with pytest.raises(ConfigError, match="did you mean 'packlimit'"):
        make_placement("skew", {"pack_limit": "0.3"})
    with pytest.raises(ConfigError, match="free, helios, model"):
        make_preemption_cost("xyz", {})


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("skew", "packlimit", "1.5"),
        ("skew", "unmeasured", "guess"),
        ("consolidate", "most_nodes_factor", "0.5"),
        ("random", "seed", "-1"),
    ],
)
def test_a_wrong_value_is_named(name: str, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        make_placement(name, {key: value})


def test_costs_and_effects_refuse_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="storage_bytes_per_s: must be above 0"):
        make_preemption_cost("model", {"storage_bytes_per_s": "0"})
    with pytest.raises(ConfigError, match="full_skew: must be above"):
        make_slowdown("spread", {"full_skew": "0.1"})
    with pytest.raises(ConfigError, match="largest_slowdown: must be at least 1"):
        make_slowdown("spread", {"largest_slowdown": "0.9"})
