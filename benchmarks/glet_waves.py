"""Figure 14: two waves of scenario 3 on up to 8 GPUs, with Algorithm 2 at work; the second is higher."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.figure import Figure, Table, curve
from benchmarks.glet_tables import RESTS_ON, SCENARIOS, missing, tables
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.scaling import fewest
from farside.scheduler.sharing.glet.size import Sizes
from farside.scheduler.sim.serving.arrivals import Course
from farside.scheduler.sim.serving.play import Epochs, EpochSettings, Played

KEY, TITLE, SOURCE = "glet-waves", "Two waves of scen3 on 8 GPUs", "glet Figure 14, §5.2"
GPUS, WHOLE_S, WINDOW_S = 8, 3200.0, 20.0
# Requests a second of each model: at the bottom, and at the top of each wave.
BOTTOM, FIRST_TOP, SECOND_TOP = 50.0, 250.0, 400.0
FIRST_S, SECOND_S = (0.0, 1200.0), (1400.0, 3200.0)
STEP_S = 10.0


def rate_at(at_s: float) -> float:
    """Requests a second of each model."""
    for (start_s, end_s), top in ((FIRST_S, FIRST_TOP), (SECOND_S, SECOND_TOP)):
        if start_s <= at_s < end_s:
            return BOTTOM + (top - BOTTOM) * (1 - math.cos(2 * math.pi * (at_s - start_s) / (end_s - start_s))) / 2
    return BOTTOM


def course(whole_s: float) -> Course:
    """Rates in steps of ten seconds."""
    names = SCENARIOS["scen3"]
    starts = tuple(float(at) for at in np.arange(0.0, whole_s, STEP_S))
    return Course(from_s=starts, rates=tuple(dict.fromkeys(names, rate_at(at_s)) for at_s in starts), until_s=whole_s)


def played(data: Path, whole_s: float, seed: int) -> Played | None:
    """What comes of it; None: the table is not there."""
    found = tables(data)
    if found is None:
        return None
    sizes = Sizes({name: found.models[name] for name in SCENARIOS["scen3"]}, found.device)

    def plan(rates: Mapping[str, float], gpus: int) -> Plan | Refusal:
        return fewest(sizes, rates, gpus)

    settings = EpochSettings(gpus_max=GPUS, window_s=WINDOW_S)
    return Epochs(plan, course(whole_s), sizes, sizes, settings, np.random.default_rng(seed), learns=False).run()


def figure(data: Path, *, whole_s: float = WHOLE_S, seed: int = 1) -> Figure:
    """GPUs, sizes of glets and violations over time."""
    started_s = time.process_time()
    result = played(data, whole_s, seed)
    cpu_s = time.process_time() - started_s
    if result is None:
        return missing(KEY, TITLE, SOURCE, data)
    windows = result.windows
    violated = [sum(one.violated.values()) / max(1, sum(one.requests.values())) for one in windows]
    requests = sum(one.requests for one in result.outcomes.values())
    lost = sum(one.late + one.dropped for one in result.outcomes.values())
    causes = [cause for _, cause in result.switches]
    picked = [one for one in windows if round(one.at_s) % 200 == 0]
    return Figure(
        key=KEY,
        title=TITLE,
        source=SOURCE,
        tables=(
            Table(
                caption="Over time",
                header=("at", "requests/s", "GPUs", "sum of glets"),
                rows=tuple(
                    (f"{one.at_s:.0f} s", f"{sum(one.requests.values()) / WINDOW_S:.0f}", f"{one.gpus}",
                     f"{one.part_pct} %")
                    for one in picked
                ),
            ),
            Table(
                caption="As a whole",
                header=("figure", "ours", "paper"),
                rows=(
                    ("requests", f"{requests:,}", "not said"),
                    ("violated or dropped", f"{100 * lost / requests:.3f} %", "below 1 %"),
                    ("windows of 20 s with over 1 % violated",
                     f"{sum(one > 0.01 for one in violated)} of {len(windows)}", "0 of 160"),
                    ("worst window", f"{100 * max(violated):.2f} %", "below 1 %"),
                    ("most GPUs", f"{max(one.gpus for one in windows)}", "8 there are"),
                    ("plans switched", f"{len(result.switches)}", "not said"),
                    ("of these by a burst or drops", f"{sum(one in ('burst', 'drops') for one in causes)}", "none"),
                    ("CPU time of the simulation", f"{cpu_s:.0f} s", "-"),
                ),
            ),
        ),
        picture=curve([("GPUs", [one.gpus for one in windows[::2]])], height=GPUS, top=float(GPUS)),
        notes=(
            RESTS_ON,
            "Simulated: Poisson arrivals, batches as long as the table says beside what the neighbour runs; a plan is "
            "switched to 12 s after it is made.",
            f"The waves are ours: {BOTTOM:g} requests a second of each model at the bottom, {FIRST_TOP:g} and "
            f"{SECOND_TOP:g} at the tops. Fewer GPUs only after three periods that needed fewer.",
        ),
    )  # fmt: skip
