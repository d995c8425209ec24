"""Latent Dirichlet allocation by collapsed Gibbs sampling; the objective is log p(words, topics).

A worker samples its words against the counts of the last pull and its own changes since, and pushes the changes. With
``frozen`` each block is sampled against the pulled counts and its own changes alone: then the result is the same for
any number of workers. Chance is drawn by seed, iteration and block. [harmony §V: LDA]
"""

import math
from typing import Any

import numpy as np

from farside.errors import FarsideError
from farside.training.app.dataset import Input
from farside.training.app.program import Options, Outcome, Watch, exact, found, goes_on_ended, nobody_watches, noted
from farside.training.app.synthetic import generator
from farside.training.loop.block import Block
from farside.training.loop.job import Job, begin

_FIRST = 1 << 32
"""In place of an iteration: the topics that words begin with."""


def train_lda(data: Input, options: Options, watch: Watch = nobody_watches) -> Outcome:
    """How often each word has each topic, (vocabulary, topics).

    Raises:
        ConfigError: numba is not there.
        FarsideError: as of `farside.training.begin` and its job.
    """
    from farside.training.app import lda_kernel  # late: numba takes its time

    count = options.components
    shape = data.columns, count
    keys = {"in_word": np.zeros(shape, np.int64), "documents": (), "tokens": np.zeros((), np.int64)}
    words = f"{count} topics alpha {exact(options.alpha)} eta {exact(options.eta)} seed {options.seed}"
    if options.frozen:
        words += " frozen"
    with begin(
        data.blocks, keys=keys, iterations=options.iterations, fingerprint=f"lda {words} {data.fingerprint}"
    ) as job:
        model = job.model
        if job.is_new:
            model["in_word"] = np.zeros(shape, np.int64)
            job.push(_first(job, shape, options))
        goes_on_ended(job, options.tolerance)
        while job.goes_on():
            total = job.pull()
            _add(model, total)
            if job.iteration:
                noted(job, _objective(total, model, options, lda_kernel), options.tolerance, watch)
            job.push(_sweep(job, model["in_word"], options, lda_kernel))
        total = job.pull()
        _add(model, total)
        objective = found(job, _objective(total, model, options, lda_kernel))
        return Outcome(objective=objective, iterations=job.iteration, model={"in_word": model["in_word"]})


def _first(job: Job[Any], shape: tuple[int, int], options: Options) -> dict[str, Any]:
    """Topics drawn evenly."""
    counts, tokens = np.zeros(shape, np.int64), 0
    for block in job.blocks():
        offsets, words = block.data
        topics = generator(options.seed, _FIRST, block.number).integers(0, shape[1], len(words)).astype(np.int32)
        documents = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        in_document = np.zeros((len(offsets) - 1, shape[1]), np.int64)
        np.add.at(in_document, (documents, topics), 1)
        np.add.at(counts, (words, topics), 1)
        block.state.update(topics=topics, in_document=in_document)
        tokens += len(words)
    return {"in_word": counts, "documents": 0.0, "tokens": tokens}


def _sweep(job: Job[Any], pulled: Any, options: Options, kernel: Any) -> dict[str, Any]:
    counts, in_topic = pulled.copy(), pulled.sum(axis=0)
    changes, documents = np.zeros_like(pulled), 0.0
    for block in job.blocks():
        if options.frozen:
            counts, in_topic = pulled.copy(), pulled.sum(axis=0)
        _sample(job, block, counts, in_topic, options, kernel)
        if options.frozen:
            changes += counts - pulled
        documents += _of_documents(block, options, kernel)
    if not options.frozen:
        changes = counts - pulled
    return {"in_word": changes, "documents": documents, "tokens": 0}


def _sample(job: Job[Any], block: Block[Any], counts: Any, in_topic: Any, options: Options, kernel: Any) -> None:
    offsets, words = block.data
    chances = generator(options.seed, job.iteration, block.number).random(len(words))
    kernel.sweep(
        offsets, words, block.state["topics"], block.state["in_document"], counts, in_topic, chances, options.alpha,
        options.eta,
    )  # fmt: skip


def _of_documents(block: Block[Any], options: Options, kernel: Any) -> float:
    """This block's share of the objective."""
    in_document, whole = block.state["in_document"], options.alpha * options.components
    lengths = in_document.sum(axis=1).reshape(-1, 1)
    return float(kernel.log_gammas(in_document, options.alpha) - kernel.log_gammas(lengths, whole))


def _add(model: dict[str, Any], total: dict[str, Any]) -> None:
    if "tokens" not in model:
        model["tokens"] = total["tokens"]
    model["in_word"] += total["in_word"]
    # Whatever is lost or counted twice shows here, at once.
    if model["in_word"].min() < 0 or model["in_word"].sum() != model["tokens"]:
        raise FarsideError("counts of words and topics do not add up", hint="this is a fault of Farside's; report it")


def _objective(total: dict[str, Any], model: dict[str, Any], options: Options, kernel: Any) -> float:
    in_topic = model["in_word"].sum(axis=0).reshape(-1, 1)
    whole = options.eta * model["in_word"].shape[0]
    found = kernel.log_gammas(model["in_word"], options.eta) - kernel.log_gammas(in_topic, whole)
    return math.fsum((found, float(total["documents"])))
