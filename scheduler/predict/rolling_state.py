"""State of the rolling estimate as text, stored in a model's file beside the trees. PURE.

Trees say how far the rolling estimate is off. Whoever reads a model from a file and has no history besides needs that
estimate as it was: its groups, how far they are trusted, and how far estimates were off by kind of job. Groups by name
are as many as names; the newest are written.
"""

import json
from collections.abc import Mapping

from farside.errors import ConfigError
from farside.scheduler.predict.mean_correction import Spread
from farside.scheduler.predict.rolling_estimate import RollingEstimator

SAVED_NAMED = 100_000
# Behind the trees, where `tree_text.checked` would drop it: the parts are separated before that.
_MARK = "\n===== what the rolling estimate knows =====\n"


def with_memory(text: str, rolling: RollingEstimator, spreads: Mapping[str, Spread]) -> str:
    """A model's text, and behind it what is known."""
    groups, named = rolling.groups(SAVED_NAMED)
    known = {
        "groups": groups,
        "named": named,
        "priors": rolling.shrinkage.state(),
        "spreads": {name: spread.state() for name, spread in spreads.items()},
    }
    return text + _MARK + json.dumps(known)


def without_memory(text: str) -> str:
    """The model's text alone, for a service that learns from history instead."""
    return text.partition(_MARK)[0]


def recall(text: str, rolling: RollingEstimator, spreads: Mapping[str, Spread]) -> None:
    """Takes in what `with_memory` wrote; nothing where there is none.

    Raises:
        ConfigError: It is not what was written.
    """
    _, mark, raw = text.partition(_MARK)
    if not mark:
        return
    try:
        known = json.loads(raw)
        rolling.take_groups(known["groups"], known["named"])
        rolling.shrinkage.restore(*known["priors"])
        for name, spread in spreads.items():
            spread.restore(*known["spreads"][name])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ConfigError(f"what the model knows of past jobs can't be read: {error}", hint="fit it again") from error
