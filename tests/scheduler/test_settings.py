"""Policies by name, their settings from text, and what an operator reads when one is wrong."""

import math
from dataclasses import dataclass

import pytest

from farside.errors import ConfigError
from farside.scheduler.order.catalog import ORDERS, make_order
from farside.scheduler.order.las import Las
from farside.scheduler.settings import from_settings, settings_of


def test_every_policy_is_made_by_the_name_that_it_tells() -> None:
    assert {name: make_order(name, {}).name for name in ORDERS} == {name: name for name in ORDERS}


def test_settings_take_the_units_that_their_names_end_in() -> None:
    order = make_order("las", {"limits_gpu_s": "0.5h, 2h", "promote_knob": "8", "starve_limit_s": "never"})

    assert order == Las(limits_gpu_s=(1800.0, 7200.0), promote_knob=8.0, starve_limit_s=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    wait_s: float = 1.0
    size_bytes: float = 1.0
    disk_bytes_per_s: float = 1.0
    peer_bytes_s: float = 1.0
    share: float = 0.0
    count: int = 1
    is_on: bool = False
    label: str = ""
    table: object = None


def test_each_type_of_field_is_read() -> None:
    told = {"wait_s": "2min", "size_bytes": "1GiB", "disk_bytes_per_s": "1.2GB/s", "share": "5%", "count": "3"}

    made = from_settings(Everything, {**told, "peer_bytes_s": "50MB", "is_on": "yes", "label": "a b"})

    assert made == Everything(
        wait_s=120.0,
        size_bytes=2**30,
        disk_bytes_per_s=1.2e9,
        peer_bytes_s=5e7,
        share=0.05,
        count=3,
        is_on=True,
        label="a b",
    )


def test_a_field_that_no_text_can_name_is_no_setting() -> None:
    assert "table" not in settings_of(Everything)


@pytest.mark.parametrize(
    ("policy", "settings", "message"),
    [
        ("gitins", {}, "no policy 'gitins'; "),
        ("nothing", {}, "no policy 'nothing'; those there are: "),
        ("las", {"limit_gpu_s": "1h"}, "las: no setting 'limit_gpu_s'; did you mean 'limits_gpu_s'?"),
        ("srtf", {"x": "1"}, "srtf: no setting 'x'; settings: preempts_by"),
        ("las", {"within": "lifo"}, "las: within: must be running_first or start_time, is 'lifo'"),
        ("las", {"limits_gpu_s": "1h,nan"}, "las: limits_gpu_s: 'nan' is not a number with a unit"),
        ("las", {"limits_gpu_s": "1 fortnight"}, "las: limits_gpu_s: '1 fortnight' has no known unit of time"),
        ("las", {"promote_knob": "-1"}, "las: promote_knob: must be at least 0, is '-1'"),
        (
            "las",
            {"limits_gpu_s": "2h,1h"},
            "las: limits_gpu_s: must ascend from 0.1 GPU s at least, is (7200.0, 3600.0)",
        ),
        (
            "las",
            {"limits_gpu_s": "1h,1h"},
            "las: limits_gpu_s: must ascend from 0.1 GPU s at least, is (3600.0, 3600.0)",
        ),
        ("las", {"limits_gpu_s": "1us"}, "las: limits_gpu_s: must ascend from 0.1 GPU s at least, is (1e-06,)"),
        ("fifo", {"is_strict": "maybe"}, "fifo: is_strict: must be true or false, is 'maybe'"),
    ],
)
def test_a_mistake_is_told_in_one_line(policy: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_order(policy, settings)

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
