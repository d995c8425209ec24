"""Gradient boosted trees for run times, by LightGBM: train, predict, save as text. PURE. [helios §4.2.2]

Fitted to how far the rolling estimate is off, in logarithms: where a name came often there is nothing to add, and trees
that had to learn every level anew would add noise. One thread, all chance from a seed: the same rows give the same
trees. A category that is not in the model's tables is a missing value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farside.errors import ConfigError
from farside.scheduler.predict.job_features import CATEGORIES, FEATURES, frequent
from farside.scheduler.predict.tree_text import booster_of
from farside.scheduler.table import Floats

if TYPE_CHECKING:
    import lightgbm

# Which number in the column of a category's names is which of its categories.
Tables = Mapping[str, Mapping[int, int]]

ROUNDS, PATIENCE_ROUNDS = 300, 30
_ROLLING = FEATURES.index("rolling_log_s")
# One thread, deterministic and row-wise: LightGBM chooses the way by a measurement otherwise, and sums in another
# order.
PARAMS: Mapping[str, object] = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 20, "cat_smooth": 20.0,
    "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 1, "verbosity": -1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gbdt:
    """Trees, with the tables of their categories."""

    booster: "lightgbm.Booster"
    tables: Tables

    def duration_s(self, rows: Floats) -> Floats:
        """What they expect of each row, a row of `FEATURES` each, in seconds."""
        predicted = np.asarray(self.booster.predict(encoded(rows, self.tables), num_threads=1), dtype=np.float64)
        # From 1 s to far above what counts as a run time (rolling_estimate.MOST_S), so that exp stays finite.
        found: Floats = np.exp(np.clip(predicted + rows[:, _ROLLING], 0.0, 30.0))
        return found

    @property
    def text(self) -> str:
        """LightGBM's own format."""
        return self.booster.model_to_string()

    @property
    def trees(self) -> int:
        """How many."""
        return int(self.booster.num_trees())


def encoded(rows: Floats, tables: Tables) -> Floats:
    """The rows with categories in place of numbers."""
    made = rows.copy()
    for at, name in enumerate(CATEGORIES):
        table = tables[name]
        column = made[:, at]
        if len(column) == 1:  # one job has come: no array is needed for it
            value = column.item(0)
            column[0] = math.nan if math.isnan(value) else table.get(int(value), math.nan)
            continue
        numbers, places = np.unique(column, return_inverse=True)
        known = [math.nan if math.isnan(one) else table.get(int(one), math.nan) for one in numbers.tolist()]
        made[:, at] = np.array(known)[places.reshape(-1)]
    return made


def fit_gbdt(rows: Floats, duration_s: Floats, *, rounds: int = 0, held: tuple[Floats, Floats] | None = None) -> Gbdt:
    """Train trees on these rows.

    Args:
        rows: A row of `FEATURES` a job.
        duration_s: How long each ran, from 1 s.
        rounds: How many trees; 0: as many as serve the rows that are held back.
        held: Those, and how long they ran.
    """
    import lightgbm

    tables = {name: frequent(rows[:, at]) for at, name in enumerate(CATEGORIES)}

    def dataset(of: Floats, ran_s: Floats, reference: "lightgbm.Dataset | None" = None) -> "lightgbm.Dataset":
        return lightgbm.Dataset(
            encoded(of, tables), np.log(ran_s) - of[:, _ROLLING], feature_name=list(FEATURES),
            categorical_feature=list(CATEGORIES), reference=reference,
        )  # fmt: skip

    train = dataset(rows, duration_s)
    if held is None:
        return Gbdt(lightgbm.train(dict(PARAMS), train, rounds or ROUNDS), tables)
    stop = lightgbm.early_stopping(PATIENCE_ROUNDS, verbose=False)
    booster = lightgbm.train(dict(PARAMS), train, ROUNDS, valid_sets=[dataset(*held, train)], callbacks=[stop])
    return Gbdt(booster, tables)


def gbdt_from_text(text: str, tables: Tables, features: Sequence[str]) -> Gbdt:
    """Trees from LightGBM's text.

    Raises:
        ConfigError: It is no such text, or of other features.
    """
    if tuple(features) != FEATURES:
        raise ConfigError("the model is of other features than this version's", hint="fit it again")
    booster = booster_of(text, len(FEATURES))
    if tuple(booster.feature_name()) != FEATURES:
        raise ConfigError("the model is of other features than its manifest says", hint="fit it again")
    return Gbdt(booster, tables)
