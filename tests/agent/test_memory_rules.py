"""What of a manager's orders about memory counts: the owner's settings bound them."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.service.memory_rules import MemoryRules, Orders
from farside.agent.startup import memory_rules
from farside.config import AgentConfig, load_config
from farside.errors import ConfigError

GIB = 1 << 30
MIB = 1 << 20
_BYTES = st.one_of(st.none(), st.integers(0, 1 << 50))
_ORDERS = st.sampled_from(get_args(Orders))


@given(_BYTES, _BYTES, _ORDERS)
def test_no_order_lends_more_than_the_owner_does(own: int | None, ordered: int | None, orders: Orders) -> None:
    rules = MemoryRules(lend_bytes=own, orders=orders)

    found = rules.lends_at_most(ordered)

    obeys = orders != "none"
    assert own is None or (found is not None and found <= own)
    assert not obeys or ordered is None or (found is not None and found <= ordered)
    assert obeys or found == own
    # Where the two differ there is a reason, and where they do not there is none.
    assert bool(rules.why_less(ordered)) == (ordered is not None and (found != ordered or not obeys))


@given(_BYTES, _BYTES, _ORDERS)
def test_an_order_about_swap_counts_where_the_owner_takes_all_and_else_the_owners_word(
    own: int | None, ordered: int | None, orders: Orders
) -> None:
    found = MemoryRules(swap_bytes=own, orders=orders, device="swap0").swaps(ordered)

    wanted = ordered if orders == "all" and ordered is not None else own
    assert found == (None if wanted is None else wanted // (2 * MIB) * (2 * MIB))
    assert MemoryRules(swap_bytes=own, orders=orders).swaps(ordered) is None


def test_the_settings_say_what_counts() -> None:
    assert memory_rules(AgentConfig()) == MemoryRules(device="swap0")
    assert memory_rules(AgentConfig(lend="off")).lends_at_most(GIB) == 0
    assert memory_rules(AgentConfig(lend="8GiB")).why_less(9 * GIB) == "lend is 8 GiB in its agent.toml"
    deaf, lender = memory_rules(AgentConfig(memory_orders="none")), memory_rules(AgentConfig(memory_orders="lend"))
    assert deaf.lend_refusal == deaf.swap_refusal == 'memory_orders is "none" in its agent.toml'
    assert (lender.lend_refusal, lender.swap_refusal) == ("", 'memory_orders is "lend" in its agent.toml')
    assert memory_rules(AgentConfig(swap_device="")).swap_refusal == "swap_device is empty in its agent.toml"
    assert memory_rules(AgentConfig(swap="8GiB")).swaps(None) == 8 * GIB
    assert memory_rules(AgentConfig(swap="off")).swaps(None) == 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"lend": "much"}, "lend: .*write on, off or a size such as 64GiB"),
        ({"swap": "much"}, "swap: is 'much'; write keep, off or a size such as 64GiB"),
        ({"swap": "on"}, "swap: is 'on'; write keep"),
        ({"swap": "1MiB"}, "swap: is 1 MiB, and less than 2 MiB is none; write off"),
        ({"swap": "1GiB", "swap_device": ""}, "swap: is set, and swap_device is empty"),
        ({"swap_device": "../x"}, r"swap_device: '../x' is no name of a device"),
    ],
)
def test_what_is_no_setting_is_refused_before_the_agent_starts(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        load_config(AgentConfig, (), settings)
