"""LDA's compiled loops: one sweep of the sampler over a block, and logarithms of the gamma function.

Compiled by numba at each start, in about two seconds; a cache of several processes can be left torn (numba #10434).
"""

import math
from typing import Any

from farside.errors import ConfigError

try:
    from numba import njit
except ImportError as error:
    raise ConfigError("lda needs the package numba", hint="pip install numba") from error


@njit(nogil=True)
def sweep(
    offsets: Any, words: Any, topics: Any, in_document: Any, in_word: Any, in_topic: Any, chances: Any, alpha: float,
    eta: float,
) -> None:  # fmt: skip
    """Draws a topic for each word of a block anew, and keeps all counts in step.

    Args:
        offsets: (documents + 1,): where each document begins.
        words: (tokens,): each one's word.
        topics: (tokens,): each one's topic; changed.
        in_document: (documents, topics): counts; changed.
        in_word: (vocabulary, topics): counts; changed.
        in_topic: (topics,): counts; changed.
        chances: (tokens,): drawn from [0, 1).
        alpha: Prior of a topic in a document.
        eta: Prior of a word in a topic.
    """
    count = in_topic.shape[0]
    spread = eta * in_word.shape[0]
    weights = in_topic.astype("float64")
    for document in range(offsets.shape[0] - 1):
        for token in range(offsets[document], offsets[document + 1]):
            word, topic = words[token], topics[token]
            in_document[document, topic] -= 1
            in_word[word, topic] -= 1
            in_topic[topic] -= 1
            total = 0.0
            for one in range(count):
                share = (in_word[word, one] + eta) / (in_topic[one] + spread)
                total += share * (in_document[document, one] + alpha)
                weights[one] = total
            wanted = chances[token] * total
            topic = 0
            while topic < count - 1 and weights[topic] <= wanted:
                topic += 1
            topics[token] = topic
            in_document[document, topic] += 1
            in_word[word, topic] += 1
            in_topic[topic] += 1


@njit(nogil=True)
def log_gammas(counts: Any, prior: float) -> float:
    """The sum of log gamma(prior + n) - log gamma(prior) over all counts n above 0, in their order."""
    base = math.lgamma(prior)
    total = 0.0
    for row in range(counts.shape[0]):
        for column in range(counts.shape[1]):
            if counts[row, column] > 0:
                total += math.lgamma(prior + counts[row, column]) - base
    return total
