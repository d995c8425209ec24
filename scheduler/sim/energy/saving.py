"""Electricity and CO2 that sleeping nodes save. PURE."""

from dataclasses import dataclass

HOURS_A_YEAR = 8760.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Cost of an idle node. Defaults are the paper's [helios §4.3.3], except CO2, which the paper does not give.

    Attributes:
        idle_w: Of an idle node, a DGX-1 in the paper.
        cooling_share: What cooling takes besides, by what the nodes take.
        kg_co2_per_kwh: The world's average in 2023 (Ember, Global Electricity Review 2024: 480 g).
    """

    idle_w: float = 800.0
    cooling_share: float = 2.0
    kg_co2_per_kwh: float = 0.48


def kwh_a_year(sleeping_nodes: float, power: Power) -> float:
    """Electricity that a mean number of sleeping nodes saves in a year."""
    return sleeping_nodes * power.idle_w * (1 + power.cooling_share) / 1000 * HOURS_A_YEAR


def co2_kg_a_year(sleeping_nodes: float, power: Power) -> float:
    """CO2 that this electricity would have caused."""
    return kwh_a_year(sleeping_nodes, power) * power.kg_co2_per_kwh
