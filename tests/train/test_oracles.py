"""The four programs beside scikit-learn and the lda package, which share no code with them."""

import itertools
import re
import warnings
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest

from farside.training.app.catalog import PROGRAMS
from farside.training.app.dataset import load
from farside.training.app.program import Options, Outcome, nobody_watches
from tests.train.programs import ended, train


def trained(**options: Any) -> Outcome:
    wanted = Options(**options)
    return PROGRAMS[wanted.app](load(wanted), wanted, nobody_watches)


def whole(options: Options) -> tuple[Any, Any]:
    """Rows and targets of all blocks."""
    parts = list(load(options).blocks)
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([targets for _, targets in parts])


@pytest.mark.parametrize(
    ("data", "penalty", "iterations"),
    [
        ("breast_cancer", 1e-2, 301),
        pytest.param("digits", 1e-2, 301, marks=pytest.mark.long),
        pytest.param("digits", 1e-3, 801, marks=pytest.mark.long),
    ],
)
def test_mlr_finds_what_logistic_regression_finds(data: str, penalty: float, iterations: int) -> None:
    from sklearn.linear_model import LogisticRegression

    options: dict[str, Any] = {"app": "mlr", "data": data, "penalty": penalty, "blocks": 8}
    rows, labels = whole(Options(**options))
    # Two classes have one row of weights there, the difference of ours, so that half the penalty is the same.
    two = labels.max() == 1
    strength = (2 if two else 1) / (penalty * len(rows))
    weights = LogisticRegression(C=strength, fit_intercept=False, tol=1e-8, max_iter=5000).fit(rows, labels).coef_
    weights = np.concatenate([-weights, weights]) / 2 if two else weights
    scores = rows @ weights.T
    scores -= scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]
    wanted = float(losses.mean() + penalty / 2 * (weights**2).sum())

    found = trained(**options, iterations=iterations)

    assert wanted - 1e-9 < found.objective < wanted + 1e-5


@pytest.mark.parametrize(
    ("options", "non_zero"),
    [
        ({"data": "diabetes", "penalty": 0.1}, 9),
        ({"data": "diabetes", "penalty": 1.0}, 7),
        ({"data": "diabetes", "penalty": 10.0}, 4),
        pytest.param({"data": "synthetic", "columns": 500, "penalty": 0.01}, 20, marks=pytest.mark.long),
        pytest.param({"data": "synthetic", "columns": 500, "penalty": 0.1}, 20, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_lasso_finds_what_lasso_finds(options: dict[str, Any], non_zero: int) -> None:
    from sklearn.linear_model import Lasso

    options = {"app": "lasso", "blocks": 8, **options}
    rows, targets = whole(Options(**options))
    other = Lasso(alpha=options["penalty"], fit_intercept=False, tol=1e-12, max_iter=100_000).fit(rows, targets)
    errors = targets - rows @ other.coef_
    wanted = float(errors @ errors) / (2 * len(rows)) + options["penalty"] * float(np.abs(other.coef_).sum())

    found = trained(**options, iterations=301)

    assert found.objective == pytest.approx(wanted, rel=1e-8)
    assert (found.model["weights"].nonzero()[0] == other.coef_.nonzero()[0]).all()
    assert found.figures["non-zero"] == non_zero


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.long), 1, pytest.param(2, marks=pytest.mark.long)])
def test_nmf_is_as_good_as_nmf_and_its_objective_never_rises(seed: int) -> None:
    seen: list[float] = []
    options = Options(app="nmf", data="digits", iterations=300, components=16, blocks=4, seed=seed)
    data = load(options)

    found = PROGRAMS["nmf"](data, options, lambda _iteration, objective: seen.append(objective))

    rows = np.concatenate(list(data.blocks))
    bound = 0.5 * float((np.linalg.svd(rows, compute_uv=False)[16:] ** 2).sum())
    assert bound < found.objective <= 940
    assert all(later <= before * (1 + 1e-9) for before, later in itertools.pairwise(seen))


@pytest.mark.long
def test_nmf_of_scikit_learn_is_where_the_bar_comes_from() -> None:
    decomposition: Any = import_module("sklearn.decomposition")
    rows = np.concatenate(list(load(Options(app="nmf", data="digits")).blocks))
    other = decomposition.NMF(16, init="random", tol=1e-6, max_iter=500, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it could go on
        other.fit(rows)

    assert 0.5 * other.reconstruction_err_**2 <= 940


@pytest.mark.long
def test_lda_is_as_likely_as_ldas(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="numba is not installed: requirements/training.txt")
    import lda

    options = Options(app="lda", data="reuters", components=20, blocks=395)
    counts = np.array([np.bincount(words, minlength=4258) for _, words in load(options).blocks])
    other = lda.LDA(n_topics=20, alpha=0.1, eta=0.01, n_iter=1000, random_state=1, refresh=100).fit(counts)
    wanted = dict(zip(range(0, 1000, 100), other.loglikelihoods_, strict=False)) | {1000: other.loglikelihood()}

    def likelihoods(workers: int, seed: int) -> dict[int, float]:
        """By iteration, every hundredth."""
        out = tmp_path / "lda.npz"
        words = ("--iterations", 1000, "--blocks", 8, "--seed", seed, "--workers", workers, "--out", out)
        code, said, errors = ended(train("lda", *words))
        assert code == 0, errors
        found = re.findall("iteration ([0-9]+) of 1000: objective (-[0-9.]+)", said)
        with np.load(out) as model:
            return {int(at): float(value) for at, value in found} | {1000: float(model["objective"])}

    for workers, share, seeds in ((1, 1.01, (1,)), (2, 1.01, (1, 2, 3)), (4, 1.015, (1, 2, 3))):
        runs = [likelihoods(workers, seed) for seed in seeds]
        for at in (100, 200, 500, 1000):
            assert mean(run[at] for run in runs) > wanted[at] * share, (workers, at)  # both are negative


def test_ldas_counts_and_likelihood_are_those_of_their_definition() -> None:
    pytest.importorskip("numba", reason="numba is not installed: requirements/training.txt")
    from scipy.special import gammaln

    options = Options(app="lda", data="synthetic", rows=60, columns=50, components=4, iterations=8, blocks=6)
    data = load(options)

    found = PROGRAMS["lda"](data, options, nobody_watches)

    in_word = found.model["in_word"]
    counted = np.bincount(np.concatenate([words for _, words in data.blocks]), minlength=50)
    assert (in_word.sum(axis=1) == counted).all()
    of_words = gammaln(0.01 + in_word).sum() - in_word.size * gammaln(0.01)
    of_words += 4 * gammaln(0.5) - gammaln(0.5 + in_word.sum(axis=0)).sum()
    # What is left is the documents': each has 100 words, so that it lies between all in one topic and all apart.
    left = found.objective - of_words
    most = 60 * (gammaln(0.1 + 100) - gammaln(0.1) + gammaln(0.4) - gammaln(100.4))
    assert 60 * (4 * (gammaln(25.1) - gammaln(0.1)) + gammaln(0.4) - gammaln(100.4)) <= left <= most


def test_one_worker_is_a_plain_loop_bit_for_bit() -> None:
    options = Options(app="mlr", data="digits", iterations=2, blocks=3)
    data = load(options)
    wanted, right = np.zeros((10, 65)), 0.0
    for rows, labels in data.blocks:
        scores = rows @ np.zeros((65, 10))
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1
        wanted += chances.T @ rows
        right += float(np.linalg.eigvalsh(rows.T @ rows)[-1])
    rate = 1 / (right / (2 * data.rows) + 0.001)

    found = PROGRAMS["mlr"](data, options, nobody_watches)

    assert found.model["weights"].tobytes() == (0 - rate * (wanted / data.rows + 0.001 * np.zeros((10, 65)))).tobytes()


def test_a_job_ends_when_its_objective_no_longer_changes() -> None:
    found = trained(app="lasso", data="diabetes", penalty=0.1, iterations=1000, tolerance=1e-9)

    assert found.iterations < 400
    assert found.objective == pytest.approx(1444.301669, rel=1e-6)
