"""glet's workloads for its figures: scenarios, applications, and the shared tables. Pure but for reading these."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.figure import Figure
from farside.scheduler.sharing.glet.profile import ModelProfile
from farside.serve.table import Tables, read_tables

FOLDER = "glet"
GPUS = 4
RATES = (0, 100, 200)
RESTS_ON = (
    "The authors never published their latencies. Ours are derived from their utilisations and SLOs "
    "(shared/data/glet/README.txt): figures can be compared with the paper's in form, not in value."
)

# Table 5 by the names of the tables; all models of a scenario at one rate.
SCENARIOS: Mapping[str, tuple[str, ...]] = {
    "scen1": ("mobilenet_v2", "bert", "mnasnet1_0", "googlenet"),
    "scen2": ("densenet161", "vgg16"),
    "scen3": ("mobilenet_v2", "resnet50", "vgg16"),
    "scen4": ("ssd-mobilenetv1", "mnasnet1_0", "densenet161"),
    "scen5": ("lenet", "ssd-mobilenetv1", "mnasnet1_0", "vgg16"),
}
# Six digits and an image of a frame of a game, each within 108 ms; a detector within 90 ms of the traffic's 202 ms, and
# what it finds within the other 112.
GAME_SLO_MS, TRAFFIC_SLO_MS = 108.0, (90.0, 112.0)
SHORT = {
    "bert": "be", "densenet161": "den", "googlenet": "goo", "lenet": "le", "mnasnet1_0": "nas", "mobilenet_v2": "mob",
    "resnet50": "res", "ssd-mobilenetv1": "ssd", "vgg16": "vgg",
}  # fmt: skip


@cache
def tables(data: Path) -> Tables | None:
    """The derived table; None where it is not."""
    folder = data / FOLDER
    return read_tables(folder) if folder.is_dir() else None


def missing(key: str, title: str, source: str, data: Path) -> Figure:
    """A figure that says that its table is not there."""
    note = f"{data / FOLDER} is not there: skipped."
    return Figure(key=key, title=title, source=source, tables=(), notes=(note,))


def all_scenarios(names: tuple[str, ...]) -> Iterator[dict[str, float]]:
    """Each model at 0, 100 or 200 requests a second, but for all at 0 [glet §3.2]."""
    for rates in itertools.product(RATES, repeat=len(names)):
        if any(rates):
            yield dict(zip(names, map(float, rates), strict=True))


def applications(found: Tables) -> Mapping[str, Mapping[str, ModelProfile]]:
    """Models by name of each application and scenario, with the SLOs that they have there."""
    models = found.models
    lenets = {f"lenet-{at}": replace(models["lenet"], name=f"lenet-{at}", slo_ms=GAME_SLO_MS) for at in range(1, 7)}
    detector, recogniser = TRAFFIC_SLO_MS
    return {
        "game": {**lenets, "resnet50": replace(models["resnet50"], slo_ms=GAME_SLO_MS)},
        "traffic": {
            "ssd-mobilenetv1": replace(models["ssd-mobilenetv1"], slo_ms=detector),
            "googlenet": replace(models["googlenet"], slo_ms=recogniser),
            "vgg16": replace(models["vgg16"], slo_ms=recogniser),
        },
        **{name: {one: models[one] for one in names} for name, names in SCENARIOS.items()},
    }
