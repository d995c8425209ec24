"""What `farside power` and `farside slurm status` say of a forecast."""

from typing import Any

from farside.cli.cluster_table import power_lines
from farside.cli.slurm import _lines

POWER: dict[str, Any] = {
    "policy": "ces", "dry_run": False, "nodes_asleep": 1, "nodes_booting": 0, "nodes_closing": 0, "saved_kwh": 1.0,
    "nodes_wanted": 2, "wanted_reason": "kept by 3 rules within the risk",
}  # fmt: skip
SLURM: dict[str, Any] = {
    "slurm": "22.05.8", "mode": "run", "partitions": ["gpu"], "policy": "las", "answers": True, "turns": 1,
    "changes": 0, "refused": 0, "left": 0, "waiting": 0, "queue": [], "would_start": [], "sleeping": [],
    "saved_kwh": 0.0, "gain": None,
}  # fmt: skip
TOLD = "no forecast before 2.9 days are known, 1.0 are; rules alone decide"


def test_power_says_what_the_forecast_is_worth_where_there_is_one() -> None:
    assert list(power_lines({**POWER, "forecast": TOLD})) == [*power_lines({**POWER, "forecast": ""}), TOLD]
    assert list(power_lines(POWER)) == list(power_lines({**POWER, "forecast": ""}))  # of an older manager


def test_slurm_status_says_what_the_forecast_is_worth_where_there_is_one() -> None:
    assert _lines({**SLURM, "forecast": TOLD}) == [*_lines({**SLURM, "forecast": ""}), TOLD]


def test_slurm_status_says_why_no_gain_is_expected() -> None:
    lines = _lines({**SLURM, "mode": "shadow", "ended": 20, "why_no_gain": "order_by = nice would order ann's alone"})

    assert lines[-1] == "expected gain: none, as order_by = nice would order ann's alone"
