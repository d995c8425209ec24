"""Models, devices and rates that hypothesis draws, and the tables that lie beside the checkout of developers."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

from farside.scheduler.sharing.glet.interference import Separable
from farside.scheduler.sharing.glet.profile import DeviceProfile, Interference, ModelProfile, NoInterference, cuts_of
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.table import Tables, read_tables

GLET_DATA = Path(__file__).parents[2].parent / "shared" / "data" / "glet"
PARTS = (20, 40, 50, 60, 80, 100)
BATCHES = 8

needs_tables = pytest.mark.skipif(not GLET_DATA.exists(), reason="the shared tables of profiles are not here")


@cache
def shared_tables() -> Tables:
    """The derived table, read once."""
    return read_tables(GLET_DATA)


def model(
    name: str,
    *,
    slo_ms: float = 100.0,
    fixed_ms: float = 2.0,
    each_ms: float = 4.0,
    flat: float = 0.5,
    memory_mb: float = 500.0,
    max_batch: int = BATCHES,
) -> ModelProfile:
    """A model whose batch takes fixed_ms + b each_ms on a whole device; ``flat``: how little a smaller part matters."""
    alone = {
        part: tuple(
            (fixed_ms + batch * each_ms) * (1 + (1 - flat) * (100 / part - 1)) for batch in range(1, max_batch + 1)
        )
        for part in PARTS
    }
    return ModelProfile(name=name, slo_ms=slo_ms, memory_mb=memory_mb, latency_ms=alone, slowed_ms=alone)


def device(interference: Interference | None = None, *, memory_mb: float = 9900.0) -> DeviceProfile:
    """A device that can be cut like the papers' GPUs."""
    return DeviceProfile(
        name="drawn",
        cuts=cuts_of(PARTS),
        memory_mb=memory_mb,
        process_mb=500.0,
        interference=interference or NoInterference(),
    )


def slowing(models: dict[str, ModelProfile], share: float) -> Separable:
    """Interference that grows with both batches: at most 1 + 2 x ``share``."""
    shares = {
        (name, part): tuple(share * part / 100 * batch / one.max_batch for batch in range(1, one.max_batch + 1))
        for name, one in models.items()
        for part in PARTS
    }
    own = {key: tuple(1 + value for value in values) for key, values in shares.items()}
    return Separable(own, shares, is_log=False)


@st.composite
def deployments(draw: st.DrawFn) -> tuple[Sizes, dict[str, float]]:
    """Up to six models with monotone tables on a device with interference, and a rate for each."""
    count = draw(st.integers(1, 6))
    models = {
        name: model(
            name,
            slo_ms=draw(st.sampled_from([20.0, 50.0, 100.0, 200.0])),
            fixed_ms=draw(st.sampled_from([0.5, 2.0, 8.0])),
            each_ms=draw(st.sampled_from([0.2, 1.0, 4.0])),
            flat=draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])),
            memory_mb=draw(st.sampled_from([50.0, 1500.0, 4000.0])),
        )
        for name in (f"m{at}" for at in range(count))
    }
    rates = {name: draw(st.sampled_from([0.0, 3.0, 40.0, 125.0, 235.0, 900.0])) for name in models}
    share = draw(st.sampled_from([0.0, 0.1, 0.5]))
    return Sizes(models, device(slowing(models, share) if share else None)), rates
